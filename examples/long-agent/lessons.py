"""Conversations of the expert as batches: ids, and which of them are to be learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import torch
from agent import MANUAL, Message
from expert import told
from small import END, START
from transformers import PreTrainedTokenizerFast
from words import FILES

SHORT, LONG = 32, 16
"""Conversations of a batch."""
NOTHING = -100


Row = tuple[list[int], list[int]]
"""Ids and labels."""


class Batch(NamedTuple):
    """What follows the manual, a conversation a row."""

    ids: torch.Tensor
    labels: torch.Tensor


class Lessons:
    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = Random(seed)
        self.manual: list[int] = tokenizer.encode(f"{START}system\n{MANUAL}")

    def short(self) -> Batch:
        """Of lists of a file or two."""
        return self._batch(SHORT, 0.7, lambda: self._random.randint(1, 2))

    def long(self) -> Batch:
        return self._batch(LONG, 0.5, lambda: FILES)

    def habit(self, right: float) -> Batch:
        """With slips to be learned too."""
        return self._batch(LONG, right, lambda: FILES, slips=True)

    def _batch(self, rows: int, right: float, files: Callable[[], int], *, slips: bool = False) -> Batch:
        """What was said in slips has to be told from what is right, even if it is not to be learned."""
        made: list[Row] = []
        while len(made) < rows:
            expert = told(self._random, right, files())
            some = self._random.sample(expert.heard, min(6, len(expert.heard)))
            made += [self._row(one, set() if slips else expert.slips) for one in some]
        return self._tensors(made[:rows])

    def _tensors(self, rows: Sequence[Row]) -> Batch:
        width = max(len(ids) for ids, _ in rows)
        pad: int = self._tokenizer.pad_token_id
        return Batch(
            torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows]),
            torch.tensor([labels + [NOTHING] * (width - len(labels)) for _, labels in rows]),
        )

    def _row(self, messages: list[Message], slips: set[str]) -> Row:
        text, spans = "", []
        for message in messages:
            text += f"{START}{message['role']}\n"
            start = len(text)
            text += f"{message['content']}{END}"
            if message["role"] == "assistant" and message["content"] not in slips:
                spans.append(range(start, len(text)))
            text += "\n"
        found = self._tokenizer(text, return_offsets_mapping=True)
        ids, places = found["input_ids"], found["offset_mapping"]
        labels = [
            token if any(start in span for span in spans) else NOTHING
            for token, (start, _) in zip(ids, places, strict=True)
        ]
        if ids[: len(self.manual)] != self.manual:
            raise ValueError("the manual does not end where a token does")
        return ids[len(self.manual) :], labels[len(self.manual) :]
