"""Version spans of a recorded row: one after the other, over all that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gyre.proxy.calls import Outcome
from gyre.proxy.log.findings import Finding, error

Row = dict[str, Any]


def check_spans(row: Row, where: str, outputs: int) -> Iterator[Finding]:
    """`outputs`: number of output ids."""
    spans = row["version_spans"] or ()
    if spans and _end(spans) != outputs:
        text = f"version spans {_told(spans)} do not cover its {outputs} output ids in order"
        yield error("version_spans", where, text)
    kv_spans, prompt = row["kv_spans"], row["prompt_tokens"]
    if kv_spans is None or prompt is None:
        return
    # The KV of the last token is not needed to end on it.
    least = prompt if outputs and row["outcome"] == Outcome.OK else 0
    end = _end(kv_spans)
    if end is None or not least <= end <= prompt + outputs:
        text = f"KV spans {_told(kv_spans)} do not fit its {prompt} prompt and {outputs} output ids"
        yield error("kv_spans", where, text)


def _end(spans: Sequence[Row]) -> int | None:
    """Where they end; None unless each begins where the one before it ends, and the first at 0."""
    at: int = 0
    for span in spans:
        if span["start"] != at or span["end"] < at:
            return None
        at = span["end"]
    return at


def _told(spans: Sequence[Row]) -> str:
    return ", ".join(f"{span['version']}: {span['start']}-{span['end']}" for span in spans)
