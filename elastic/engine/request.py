"""What is asked of the engine's core, and what it answers. Token ids only: text is the server's.

Values, and the face through which a request hears of its tokens; no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. The defaults are neutral: softmax at temperature 1."""

    seed: int
    """Noise is a function of (seed, position) alone, so that a continuation needs no saved generator."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion to sample: a choice of a call."""

    request_id: str
    """Unique among the requests that the engine holds."""
    call_id: str | None = None
    """Of the call that this is a choice of: it ends by that name too."""
    prompt_ids: Sequence[int]
    output_ids: Sequence[int] = ()
    """Already sampled, here or elsewhere: the request is continued after them, as if never interrupted."""
    max_tokens: int
    """Of the whole output, `output_ids` included; at least 1."""
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the output and belong to it: the model's end tokens and the request's own."""
    top_logprobs: int = 0
    """How many alternatives to report with each token."""
    prompt_logprobs: int | None = None
    """None: none; else the prompt's log-probabilities with that many alternatives; nothing is reused then."""
    kv_id: str | None = None
    """Imported KV to start from, older spans included; see `moving.carry`."""
    forced_ids: Sequence[int] = ()
    """For tests: the output, whose log-probabilities are the model's all the same."""


@dataclass(frozen=True, slots=True)
class Alternative:
    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token."""

    id: int
    logprob: float
    """Of the raw distribution: temperature 1, nothing cut off."""
    sampling_logprob: float
    """Of the distribution sampled from; 0 for greedy."""
    version: str
    """Policy version whose weights gave the logits."""
    top: tuple[Alternative, ...] = ()
    """The most probable ids of the raw distribution."""


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """One prompt token after the first, as the model saw it coming."""

    id: int
    logprob: float
    rank: int
    """1 for the most probable."""
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [start, end) belong to `version`."""

    version: str
    start: int
    end: int


def spans_of(versions: Iterable[str]) -> tuple[Span, ...]:
    """Neighbours of one version as one span."""
    spans: list[Span] = []
    for index, version in enumerate(versions):
        start = spans.pop().start if spans and spans[-1].version == version else index
        spans.append(Span(version, start, index + 1))
    return tuple(spans)


class FinishReason(StrEnum):
    """vLLM's words, and `moved`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """By the client, by a pause with `abort`, or by a publication with `abort`."""
    MOVED = "moved"
    """Its KV was exported and another engine goes on."""
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a request ended."""

    reason: FinishReason
    stop_id: int | None = None
    """The id of `stop_ids` that ended it."""
    error: str | None = None
    """For `error`: what to tell the client."""
    kv_spans: tuple[Span, ...] = ()
    """Which version computed the KV of which positions of prompt and output."""
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The prompt is read; the first token follows in the same step."""

    cached_tokens: int
    """Prompt tokens whose KV was found instead of computed."""
    version: str
    digest: str
    prompt_logprobs: tuple[PromptLogprob, ...] | None = None


class Listener(Protocol):
    """Hears of one request on the engine's thread: it must be quick and must not raise."""

    def started(self, started: Started) -> None:
        """Once, before the first token."""

    def token(self, token: Token) -> bool:
        """A token was sampled; True ends the output with it (a stop string is complete)."""

    def finished(self, finish: Finish) -> None:
        """Once; nothing follows."""


@dataclass(slots=True)
class Collected:
    """A `Listener` that keeps what it hears."""

    tokens: list[Token] = field(default_factory=list)
    start: Started | None = None
    finish: Finish | None = None

    def started(self, started: Started) -> None:
        self.start = started

    def token(self, token: Token) -> bool:
        self.tokens.append(token)
        return False

    def finished(self, finish: Finish) -> None:
        self.finish = finish
