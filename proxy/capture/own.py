"""What gyre's own engine says beyond vLLM's fields: versions, weights, the effective sampling. No I/O."""

from __future__ import annotations

import msgspec

from gyre.proxy.calls import VersionSpan
from gyre.proxy.capture.captured import Captured, ChoiceCapture
from gyre.proxy.capture.reply import Choice, Index, Logprobs, Raw, int64, is_null, read_metadata


class _Span(msgspec.Struct):
    version: str | int
    start: Index
    end: Index


_decode_spans = msgspec.json.Decoder(list[_Span]).decode
_decode_seed = msgspec.json.Decoder(int).decode


def read_own(captured: Captured, choice: Choice, out: ChoiceCapture) -> None:
    """Add what a choice says, whole or one chunk of it, to `out`."""
    if not is_null(choice.weight_versions):
        spans = _spans(choice.weight_versions)
        if spans is None:
            captured.flag("version_unsure")
        for span in spans or ():
            _append(out.spans, span)
    if not is_null(choice.kv_versions):
        out.kv_spans = _spans(choice.kv_versions)
    if not is_null(choice.seed):
        try:
            out.seed = int64(_decode_seed(choice.seed))
        except msgspec.ValidationError:
            out.seed = None


def read_own_metadata(captured: Captured, raw: Raw) -> None:
    """Of an answer, or of a chunk: later ones say only what is new."""
    said = read_metadata(raw)
    captured.weight_digests.update(said.weight_digests or {})
    if said.sampling is not None:
        captured.sampling = said.sampling.effective()
    if said.spliced_tokens is not None:
        captured.spliced_tokens = said.spliced_tokens


def sampling_values(logprobs: Logprobs | None) -> list[float | None]:
    """One per entry, of the distribution sampled from."""
    if logprobs is None:
        return []
    if logprobs.content is not None:
        return [entry.sampling_logprob for entry in logprobs.content]
    return logprobs.sampling_logprobs or []


def _spans(raw: Raw) -> list[VersionSpan] | None:
    """None for what is no list of spans."""
    try:
        return [VersionSpan(str(span.version), span.start, span.end) for span in _decode_spans(raw)]
    except msgspec.ValidationError:
        return None


def _append(spans: list[VersionSpan], span: VersionSpan) -> None:
    """As part of the last one, where it goes on with the same version."""
    last = spans[-1] if spans else None
    if last is not None and (last.version, last.end) == (span.version, span.start):
        spans[-1] = VersionSpan(span.version, last.start, span.end)
    else:
        spans.append(span)
