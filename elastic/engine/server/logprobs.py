"""Log-probabilities as both wires write them. Pure.

`logprob` is of the raw distribution, `sampling_logprob` of the one that was sampled from. NaN, for
tokens of which it is not known, becomes null in JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gyre.elastic.engine.request import Alternative, PromptLogprob, Token
from gyre.elastic.engine.server.spelling import Spelling

Json = dict[str, Any]


def chat_logprobs(spelling: Spelling, tokens: Sequence[Token]) -> Json:
    return {"content": [_entry(spelling, token) for token in tokens], "refusal": None}


def _entry(spelling: Spelling, token: Token) -> Json:
    alternatives = [_spelled(spelling, one.id, one.logprob) for one in token.top]
    entry = _spelled(spelling, token.id, token.logprob)
    return entry | {"top_logprobs": alternatives, "sampling_logprob": token.sampling_logprob}


def _spelled(spelling: Spelling, token_id: int, logprob: float) -> Json:
    text, raw = spelling.of(token_id)
    return {"token": text, "logprob": logprob, "bytes": raw}


def completion_logprobs(spelling: Spelling, tokens: Sequence[Token], offsets: Sequence[int]) -> Json:
    """`offsets`: where in the answer's text each token begins."""
    return {
        "tokens": [spelling.of(token.id)[0] for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_best(spelling, token) for token in tokens],
        "text_offset": list(offsets),
        "sampling_logprobs": [token.sampling_logprob for token in tokens],
    }


def _best(spelling: Spelling, token: Token) -> dict[str, float]:
    """The sampled token is always among them, as in OpenAI's; ids of one spelling share an entry."""
    sampled = {spelling.of(token.id)[0]: token.logprob}
    return {spelling.of(one.id)[0]: one.logprob for one in reversed(token.top)} | sampled


def prompt_logprobs(spelling: Spelling, read: Sequence[PromptLogprob]) -> list[Json | None]:
    """vLLM's form: nothing for the first token, then the token itself and its alternatives by id."""
    return [None, *(_read(spelling, one) for one in read)]


def _read(spelling: Spelling, one: PromptLogprob) -> Json:
    best = [(rank, other) for rank, other in enumerate(one.top, 1) if other.id != one.id]
    ranked = [(one.rank, Alternative(one.id, one.logprob)), *best]
    return {str(other.id): _ranked(spelling, rank, other) for rank, other in ranked}


def _ranked(spelling: Spelling, rank: int, one: Alternative) -> Json:
    return {"logprob": one.logprob, "rank": rank, "decoded_token": spelling.of(one.id)[0]}
