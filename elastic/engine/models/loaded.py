"""A model in memory, with what the engine has to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    name: str
    """The name to use in requests."""
    model: PreTrainedModel
    """In eval mode; its parameters are memory of its own (never a map of a file), fp32 or bf16."""
    tokenizer: PreTrainedTokenizerFast
    chat_template: str | None
    """None: chat requests are refused with the reason."""
    stop_ids: frozenset[int]
    """End-of-turn and end-of-text ids."""
    vocab_size: int
    """Ids that the model has rows for; the tokenizer may know fewer."""
    max_positions: int

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype
