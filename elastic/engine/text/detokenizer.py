"""Ids to text while they are sampled: no character is split, nothing is lost at the end.

The window of ids that is decoded again with each new one ends as soon as its text is whole. The tokenizers
library streams in the same way, but it prints the prompt again when that ends inside a character, raises
when a byte turns out to belong to none, and keeps what is pending at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from transformers import PreTrainedTokenizerFast

_CONTEXT = 4
"""Ids of the prompt that are decoded along, because a first word may lose its blank without them."""
_UNFINISHED = 7
"""U+FFFD at the end that may still become something else: decoders with byte fallback show each byte as one,
three of a character begun and, until it ends, the four of the character before."""
_WINDOW = 16
"""Ids without an end of a character after which the window is cut where its text allows."""


def hidden_ids(tokenizer: PreTrainedTokenizerFast, *, keep: Sequence[str] = ()) -> frozenset[int]:
    """Special ids, which clients do not see as text; `keep` are texts to show all the same.

    For replies that are parsed, keep `reply.MARKERS`: some models have special tokens for them.
    """
    added = tokenizer.added_tokens_decoder
    return frozenset(id_ for id_, token in added.items() if token.special and token.content not in keep)


class Detokenizer:
    """The text of one output, piece by piece."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        prompt_ids: Sequence[int] = (),
        *,
        hidden: AbstractSet[int] = frozenset(),
    ) -> None:
        """`prompt_ids` is the left context, which decides of a leading blank; only its end is looked at."""
        self._rust = tokenizer.backend_tokenizer
        self._hidden = hidden
        self._window: list[int] = []
        self._context = 0
        """How many ids of the window are only context: their text was told before."""
        self._sent = 0
        """How many characters of the window's text were told."""
        self._start([id_ for id_ in prompt_ids[-_CONTEXT:] if id_ not in hidden])

    def add(self, token_id: int) -> str:
        """Take one id; the text that is certain now, often empty within a character."""
        if token_id in self._hidden:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        certain = len(text) - _unfinished(text)
        new = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if certain == len(text):
            self._start(self._window[self._context :])
        elif len(self._window) > _WINDOW:
            self._cut(text)
        return new

    def flush(self) -> str:
        """The rest, at the end of the output: bytes that form no character come out as U+FFFD."""
        rest = self._decode(self._window)[self._sent :]
        self._start([])
        return rest

    def _start(self, context: list[int]) -> None:
        text = self._decode(context)
        self._window = [] if _unfinished(text) else context
        self._context = len(self._window)
        self._sent = len(text) if self._window else 0

    def _cut(self, text: str) -> None:
        """Drop ids at the front, at a place that no character spans: the halves then decode to the whole."""
        for at in range(len(self._window) - 1, self._context, -1):
            front = self._decode(self._window[:at])
            if len(front) <= self._sent and front + self._decode(self._window[at:]) == text:
                self._window, self._context, self._sent = self._window[at:], 0, self._sent - len(front)
                return

    def _decode(self, ids: list[int]) -> str:
        return self._rust.decode(ids, skip_special_tokens=False)


def _unfinished(text: str) -> int:
    """How many characters at the end may still become another one."""
    whole = text[-_UNFINISHED:].rstrip("\ufffd")
    return min(len(text), _UNFINISHED) - len(whole)
