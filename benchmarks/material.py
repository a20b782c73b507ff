"""Seeded text, token ids and log-probabilities, rendered once and cut by slices.

A position is a token: four bytes of text, one id, one log-probability. The prompt of an execution
that begins at position s and is n tokens long is ids[s:s+n], its answer ids[s+n:s+n+out]; the next
prompt is longer by more than the answer, so it extends prompt and answer exactly, as a real
tokenizer's would. Ids are uniform (the worst case for a codec), words are drawn by Zipf's law.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

SEED = 20_260_923
TOKENS = 1_300_000
BYTES_PER_TOKEN = 4
VOCABULARY = 151_643
MAX_OUTPUT = 4096
CALL_TOKENS = 16
"""Of a tool call: where it begins, text of its one argument, where it ends."""
_ENTRIES = 16_384


class Slices:
    """Comma-separated JSON values of which any run can be cut out without rendering it again."""

    def __init__(self, values: Iterable[bytes]) -> None:
        rendered = list(values)
        self._blob = b",".join(rendered)
        ends = np.cumsum([len(value) + 1 for value in rendered])
        self._starts = [0, *ends.tolist()]

    def cut(self, start: int, count: int) -> bytes:
        """`count` values from `start` on, without brackets."""
        return self._blob[self._starts[start] : max(0, self._starts[start + count] - 1)] if count else b""


def make_ids() -> Slices:
    rng = np.random.default_rng(SEED)
    return Slices(b"%d" % token for token in rng.integers(0, VOCABULARY, TOKENS).tolist())


def make_logprobs() -> Slices:
    """Entries as vLLM writes them; position p uses entry `logprob_index(p)`."""
    rng = np.random.default_rng(SEED + 1)
    values = -rng.exponential(0.4, _ENTRIES)
    text = make_text(_ENTRIES)
    entry = b'{"token":"%b","logprob":%.16f,"bytes":[%d,%d,%d,%d],"top_logprobs":[]}'
    pieces = (text[at : at + 4] for at in range(0, 4 * _ENTRIES, 4))
    return Slices(entry % (piece, value, *piece) for piece, value in zip(pieces, values, strict=True))


def call_id(position: int) -> bytes:
    """Of the tool call whose first token is at `position`."""
    return b"call_%d" % position


def argument(text: bytes, position: int) -> bytes:
    """What that call has for `path`."""
    return text[(position + 1) * BYTES_PER_TOKEN : (position + CALL_TOKENS - 1) * BYTES_PER_TOKEN]


def logprob_index(position: int) -> int:
    return position % (_ENTRIES - MAX_OUTPUT)


def make_text(tokens: int = TOKENS) -> bytes:
    """Words of a made-up language: four bytes for each token, nothing that JSON must escape."""
    rng = np.random.default_rng(SEED + 2)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkqjxz", np.uint8)
    weights = 1 / np.arange(1, 4001)
    vocabulary = [bytes(rng.choice(letters[:20], rng.integers(2, 10))) for _ in weights]
    size = tokens * BYTES_PER_TOKEN
    drawn = rng.choice(len(vocabulary), size // 4, p=weights / weights.sum())
    text = b" ".join(vocabulary[index] for index in drawn.tolist())
    return text[:size]
