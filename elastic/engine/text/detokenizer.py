"""Ids to text while they are sampled: no character is split, nothing is lost at the end."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from transformers import PreTrainedTokenizerFast


def hidden_ids(tokenizer: PreTrainedTokenizerFast, *, keep: Sequence[str] = ()) -> frozenset[int]:
    """Special ids, which clients do not see as text; `keep` are texts to show all the same.

    For replies that are parsed, keep `reply.MARKERS`: some models have special tokens for them.
    """
    raise NotImplementedError


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
        raise NotImplementedError

    def add(self, token_id: int) -> str:
        """Take one id; the text that is certain now, often empty within a character."""
        raise NotImplementedError

    def flush(self) -> str:
        """The rest, at the end of the output: bytes that form no character come out as U+FFFD."""
        raise NotImplementedError
