"""Recurrent layers other than those of the matrix: states are forked, or the model is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    OlmoHybridConfig,
    OlmoHybridForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from gyre.trainer.errors import RefusedError
from gyre.trainer.passes.choose import choose
from gyre.trainer.passes.dfs import DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import PassName
from tests.trainer.compare import TOLERANCE, distance
from tests.trainer.models import SIZES, VOCAB
from tests.trainer.passes.compare import batch, trained

DELTA: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_value_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "pad_token_id": 0,
}


def short_convolutions() -> PreTrainedModel:
    sizes = SIZES | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
    return Lfm2ForCausalLM(Lfm2Config(**sizes, block_auto_adjust_ff_dim=False))


def gated_delta_experts() -> PreTrainedModel:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(**SIZES, **DELTA, **experts, shared_expert_intermediate_size=16)
    )


def gated_delta_apart() -> PreTrainedModel:
    """Queries, keys and values have convolutions of their own: several states a layer."""
    return OlmoHybridForCausalLM(OlmoHybridConfig(**SIZES, **DELTA))


@pytest.mark.slow
@pytest.mark.parametrize("make", [short_convolutions, gated_delta_experts, gated_delta_apart])
@pytest.mark.parametrize("limit", [None, 3])
def test_equals_flat(make: Any, limit: int | None) -> None:
    torch.manual_seed(0)
    policy = Policy(make().eval())
    assert policy.kinds.recurrent
    packed, temperature_K = batch(11, nodes=8, longest=6)
    _, wanted = trained(policy.model, FlatPass(policy), packed, temperature_K)
    run = DfsPass(policy, budget=limit or 1000)
    output, given = trained(policy.model, run, packed, temperature_K)
    assert bool(torch.isfinite(output.logprobs_K).all())
    # As these come, unlike the matrix's hybrid, each pass is up to 1e-5 off from itself in fp64.
    assert distance(given, wanted)[0] < 3 * TOLERANCE


def test_a_state_that_is_written_over_is_refused() -> None:
    """State spaces do so for a single token: the branches beside it would start from its state."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_heads": 8, "head_dim": 4, "state_size": 4, "n_groups": 1, "chunk_size": 8}
    config = Mamba2Config(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, expand=2, **sizes)
    policy = Policy(Mamba2ForCausalLM(config).eval())
    with pytest.raises(RefusedError, match="writes over the state"):
        choose(policy, PassName.DFS, budget=100)
