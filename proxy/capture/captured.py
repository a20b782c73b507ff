"""What was captured of one answer, and how good it is. Values in, values out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gyre.proxy.calls import CaptureQuality, LogprobQuality, Sampling, VersionSpan
from gyre.proxy.capture.reply import Ids
from gyre.proxy.capture.usage import Usage

ABANDONED = frozenset(("abort", "moved", "error"))
"""As `finish_reason`: what was sampled is all there, and no answer. `moved` is our own engine's word."""


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
    sampling_logprobs: list[float | None] | None = None
    """The same of the distribution sampled from, where the engine says that besides."""
    empty: bool = False
    """Neither text nor a tool call."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Of the output; an end of -1 is that of the output."""
    kv_spans: list[VersionSpan] | None = None
    """Of prompt and output."""
    seed: int | None = None

    @property
    def version_spans(self) -> list[VersionSpan]:
        """Who sampled which ids; none unless they are all accounted for."""
        count = len(self.ids or ())
        spans = [VersionSpan(s.version, s.start, count if s.end < 0 else s.end) for s in self.spans]
        ends = [span.end for span in spans]
        whole = [0, *ends] == [*(span.start for span in spans), count]
        return spans if whole and ends == sorted(ends) else []


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
    weight_digests: dict[str, str] = field(default_factory=dict)
    """By version."""
    spliced_tokens: int | None = None
    given: int = 0
    """Output ids that the request gave; they are the end of `prompt_ids`."""
    complete: bool = False
    """The answer ended as its wire says an answer ends."""
    flags: list[str] = field(default_factory=list)

    @property
    def abandoned(self) -> str | None:
        """Why the engine ended it before it was complete, in its own word."""
        reasons = (choice.finish_reason for choice in self.choices)
        return next((reason for reason in reasons if reason in ABANDONED), None)

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
    elif usage.prompt is not None and usage.prompt != len(captured.prompt_ids) - captured.given:
        flags.append("prompt_count_mismatch")
    if choice.spans and not choice.version_spans and "version_unsure" not in flags:
        flags.append("version_unsure")
    if not choice.ids and sampled and not captured.given:
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
    counts = [captured.given + len(choice.ids or ()) for choice in captured.choices]
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
    "given_ids_differ",
}


def _logprobs_fit(choice: ChoiceCapture) -> bool:
    count = len(choice.ids or ())
    own = choice.sampling_logprobs
    return _all_there(choice.logprobs or [], count) and (own is None or _all_there(own, count))


def _all_there(logprobs: list[float | None], count: int) -> bool:
    # Engines write -9999.0, or nothing, where they have no number.
    numbers = [value for value in logprobs if value is not None]
    return count == len(logprobs) == len(numbers) and (not numbers or min(numbers) > -9999.0)


def behaviour(
    choice: ChoiceCapture, sampling: Sampling
) -> tuple[list[float | None] | None, list[float | None] | None]:
    """Log-probabilities of the distribution sampled from, as far as the engine says; the raw ones if other.

    At temperature 0 nothing was sampled, and the raw ones say more.
    """
    own = choice.sampling_logprobs
    if own is None or sampling.temperature == 0:
        return choice.logprobs, None
    return own, None if own == choice.logprobs else choice.logprobs


def logprob_quality(choice: ChoiceCapture, sampling: Sampling) -> LogprobQuality:
    """Whether the log-probabilities are of the distribution that was sampled from.

    Engines report the untempered, untruncated softmax by default, so they are only where sampling
    was neutral; ours says both.
    """
    if not choice.logprobs:
        return LogprobQuality.NONE
    if sampling.temperature == 0:
        return LogprobQuality.GREEDY
    if choice.sampling_logprobs is not None:
        return LogprobQuality.SAMPLED
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
