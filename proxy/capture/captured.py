"""What was captured of one answer, and how good it is. Values in, values out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gyre.proxy.calls import CaptureQuality, LogprobQuality, Sampling, VersionSpan
from gyre.proxy.capture.reply import Ids
from gyre.proxy.capture.usage import Usage


@dataclass(slots=True)
class ChoiceCapture:
    """One choice of an answer."""

    index: int
    message: bytes | None = None
    """The assembled message, JSON."""
    finish_reason: str | None = None
    ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    """As many entries as the engine sent, which a good engine makes one per id."""
    empty: bool = False
    """Neither text nor a tool call."""
    spans: list[VersionSpan] = field(default_factory=list)


@dataclass(slots=True)
class Captured:
    """One answer, whole or as far as it came."""

    choices: list[ChoiceCapture] = field(default_factory=list)
    prompt_ids: Ids | None = None
    prompt_text: str | None = None
    """llama.cpp: the rendered prompt, from which the ids are still to be asked for."""
    usage: bytes | None = None
    meta: bytes | None = None
    sampling: Sampling | None = None
    """Effective parameters, from engines that report them."""
    complete: bool = False
    """The answer ended as its wire says an answer ends."""
    flags: list[str] = field(default_factory=list)

    def flag(self, reason: str) -> None:
        if reason not in self.flags:
            self.flags.append(reason)


def judge(
    captured: Captured, choice: ChoiceCapture, usage: Usage, sampled: bool
) -> tuple[CaptureQuality, list[str]]:
    """Quality of one choice and the reasons against it.

    Counts must agree with the engine's own usage: ids can be lost in tool parsers, in stop-string
    buffers and in characters of several tokens. Nothing is padded or shifted to look complete.
    `sampled` says whether anything should have been sampled at all.
    """
    flags = list(captured.flags)
    if captured.prompt_ids is None and choice.ids is None:
        return CaptureQuality.NONE, flags
    if captured.prompt_ids is None:
        flags.append("prompt_ids_missing")
    elif usage.prompt is not None and usage.prompt != len(captured.prompt_ids):
        flags.append("prompt_count_mismatch")
    if not choice.ids and sampled:
        flags.append("output_ids_missing")
    elif usage.completion is not None and usage.completion not in _counts(captured):
        flags.append("tokens_incomplete")
    if set(flags) & _FATAL:
        return CaptureQuality.INCOMPLETE, flags
    if not _logprobs_fit(choice):
        return CaptureQuality.IDS_ONLY, [*flags, "logprobs_incomplete"]
    return CaptureQuality.EXACT, flags


def _counts(captured: Captured) -> tuple[int, int]:
    """Sampled ids of all choices together; of the first alone, which is what llama.cpp counts."""
    counts = [len(choice.ids or ()) for choice in captured.choices]
    return sum(counts), counts[0]


_FATAL = {
    "prompt_ids_missing",
    "prompt_count_mismatch",
    "output_ids_missing",
    "tokens_incomplete",
    "cut",
    "event_unreadable",
    "event_too_large",
    "answer_unreadable",
    "version_unsure",
}


def _logprobs_fit(choice: ChoiceCapture) -> bool:
    ids, logprobs = choice.ids or [], choice.logprobs or []
    # Engines write -9999.0, or nothing, where they have no number.
    numbers = [value for value in logprobs if value is not None]
    return len(ids) == len(logprobs) == len(numbers) and (not numbers or min(numbers) > -9999.0)


def logprob_quality(choice: ChoiceCapture, sampling: Sampling) -> LogprobQuality:
    """Whether the log-probabilities are of the distribution that was sampled from.

    Engines report the untempered, untruncated softmax by default, so they are only where sampling
    was neutral.
    """
    if not choice.logprobs:
        return LogprobQuality.NONE
    if sampling.temperature == 0:
        return LogprobQuality.GREEDY
    if None in (sampling.temperature, sampling.top_p):
        return LogprobQuality.UNKNOWN
    neutral = (
        sampling.temperature == 1
        and sampling.top_p == 1
        and (sampling.top_k or 0) <= 0
        and not sampling.min_p
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
        and sampling.repetition_penalty in (None, 1)
    )
    return LogprobQuality.SAMPLED if neutral else LogprobQuality.RAW


def float32(values: list[float | None] | None) -> bytes | None:
    """Little-endian float32; a missing number is NaN, never a guess."""
    if values is None:
        return None
    if None in values:
        values = [math.nan if value is None else value for value in values]
    return np.array(values, "<f4").tobytes()
