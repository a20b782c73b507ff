"""One sequence in the engine: what is known of it between two steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gyre.elastic.engine.compute.kv import SequenceKV
from gyre.elastic.engine.compute.sampling import Row
from gyre.elastic.engine.request import GenerationRequest, Listener, PromptLogprob, Token


@dataclass(slots=True, eq=False)
class Sequence:
    request: GenerationRequest
    listener: Listener
    ids: list[int]
    """Prompt and output so far."""
    array: npt.NDArray[np.int32]
    """The same when it last began to wait, to compare with."""
    kv: SequenceKV | None = None
    """None while it waits."""
    siblings: list[Sequence] = field(default_factory=list)
    """Further choices of the same call: they leave with a copy once the prompt is computed."""
    cached_tokens: int = 0
    told: bool = False
    """Whether the listener heard of the start."""
    tokens: list[Token] = field(default_factory=list)
    """Sampled here."""
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def output_length(self) -> int:
        return len(self.ids) - len(self.request.prompt_ids)

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are there."""
        return self.kv.length if self.kv else 0

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed

    @property
    def keeps_kv(self) -> bool:
        """Whether new weights find it with tokens of an answer. Before the first one nothing is lost, and all
        of the answer, and log-probabilities of the prompt, are then of one version."""
        return self.told or (self.output_length > 0 and self.request.prompt_logprobs is None)

    def advance(self, tokens: int, version: str) -> None:
        """`tokens` more are computed, with the weights of `version`."""
        assert self.kv is not None
        self.kv.advance(tokens, version)

    def take(self, token: Token) -> None:
        self.ids.append(token.id)
        self.tokens.append(token)

    def begin_again(self) -> None:
        """Compute all its tokens anew."""
        if self.kv is not None:
            self.kv.truncate(0)
        self.array = np.array(self.ids, np.int32)
        if not self.told:
            self.prompt_logprobs.clear()

    def row(self) -> Row:
        """How its next token is drawn; the position is where that token will stand."""
        forced, index = self.request.forced_ids, self.output_length
        return Row(self.request.sampling, len(self.ids), forced[index] if index < len(forced) else None)


def beginning(request: GenerationRequest) -> npt.NDArray[np.int32]:
    """What a request's tokens are before any is sampled here."""
    return np.array([*request.prompt_ids, *request.output_ids], np.int32)
