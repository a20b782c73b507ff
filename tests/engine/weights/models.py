"""Small models for tests of weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.models.tiny import make_tiny

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def qwen3(
    seed: int = 0, *, tied: bool = True, dtype: torch.dtype = torch.float32, **sizes: int
) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**(SIZES | sizes), tie_word_embeddings=tied))
    return model.eval().to(dtype)


def qwen3_moe(seed: int = 0) -> PreTrainedModel:
    """Its files have a tensor for each expert, its modules one for all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
        return Qwen3MoeForCausalLM(config).eval()


def loaded(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel(
        name="small",
        model=model,
        tokenizer=tokenizer(),
        chat_template=None,
        stop_ids=frozenset({1}),
        vocab_size=64,
        max_positions=128,
    )


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tiny().tokenizer
