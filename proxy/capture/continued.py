"""An answer that goes on after output ids that its request gave: what was sampled before is context now."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gyre.proxy.calls import VersionSpan
from gyre.proxy.capture.captured import Captured, ChoiceCapture
from gyre.proxy.capture.reply import Ids


def continued(captured: Captured, given: Ids, streamed: bool) -> Captured:
    """The capture with `given` as the end of the prompt and only what followed as the output.

    A plain answer repeats what was given, a stream brings what is new; in both, positions of
    `weight_versions` count from the first of the given ids.
    """
    if captured.prompt_ids is None:
        return captured
    prompt = np.concatenate([captured.prompt_ids, given])
    out = replace(captured, prompt_ids=prompt, given=len(given), flags=list(captured.flags))
    out.choices = [_after(out, choice, given, streamed) for choice in captured.choices]
    return out


def _after(out: Captured, choice: ChoiceCapture, given: Ids, streamed: bool) -> ChoiceCapture:
    repeated = 0 if streamed else len(given)
    ids = choice.ids or []
    if ids[:repeated] != given[:repeated].tolist():
        out.flag("given_ids_differ")
    return replace(
        choice,
        ids=ids[repeated:],
        logprobs=_rest(choice.logprobs, repeated),
        sampling_logprobs=_rest(choice.sampling_logprobs, repeated),
        spans=_shifted(choice.spans, len(given)),
    )


def _rest(values: list[float | None] | None, start: int) -> list[float | None] | None:
    return None if values is None else values[start:]


def _shifted(spans: list[VersionSpan], by: int) -> list[VersionSpan]:
    return [VersionSpan(s.version, max(s.start - by, 0), s.end - by) for s in spans if s.end > by]
