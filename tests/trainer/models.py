"""Small models for tests of training, one of each way in which a layer can look back.

Weights are wide enough that no distribution is near uniform: a token that is read off the wrong place, or a
key too many in an attention, then shows in every number.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

Kind = Literal["qwen3", "llama", "sliding", "mixed", "moe", "hybrid"]
KINDS: tuple[Kind, ...] = get_args(Kind)

VOCAB = 97
WINDOW = 5
"""Shorter than nearly every path of `builders.random_trees`."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "attention_dropout": 0.0,
}


def tiny_model(kind: Kind = "qwen3", seed: int = 0, **sizes: Any) -> PreTrainedModel:
    """fp32, `eval`, the same for the same arguments; `sizes` replace those of the configuration."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _untrained(kind, SIZES | sizes)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in name:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
            if name.endswith("A_log"):  # a state that lasts for some tokens; as it comes, for less than one
                parameter.data.copy_(torch.linspace(0.05, 0.4, len(parameter)).log())
    return model.eval()


def _untrained(kind: Kind, sizes: dict[str, Any]) -> PreTrainedModel:
    match kind:
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**{"tie_word_embeddings": True} | sizes))
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes))
        case "sliding":
            return MistralForCausalLM(MistralConfig(**{"sliding_window": WINDOW} | sizes))
        case "mixed":
            return Qwen3ForCausalLM(Qwen3Config(**_mixed() | sizes))
        case "moe":
            return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_moe() | sizes))
        case "hybrid":
            return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_hybrid() | sizes))


def _mixed() -> dict[str, Any]:
    layers = ["sliding_attention", "full_attention"]
    return {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": layers}


def _moe() -> dict[str, Any]:
    experts = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    return {**experts, "norm_topk_prob": True, "output_router_logits": False}


def _hybrid() -> dict[str, Any]:
    keys = {"linear_key_head_dim": 8, "linear_num_key_heads": 2}
    values = {"linear_value_head_dim": 8, "linear_num_value_heads": 4}
    layers = ["linear_attention", "full_attention"]
    # A first token's q.k may be near 0, and what is then normalised is rounding.
    return {**keys, **values, "linear_conv_kernel_dim": 4, "layer_types": layers, "rms_norm_eps": 1e-3}
