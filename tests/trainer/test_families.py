"""Models of other families: each pass is exact on them, or it is refused. Nothing in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gyre.trainer.errors import RefusedError
from gyre.trainer.passes.choose import choose
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import LossSettings, PassName
from tests.trainer.builders import Shape, random_trees
from tests.trainer.compare import assert_true, update
from tests.trainer.models import SIZES, WINDOW
from tests.trainer.scenes import CLIP, of
from tests.trainer.ways import WAYS

pytestmark = pytest.mark.slow

PARTLY = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_value_heads": 4,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gemma3_text": PARTLY | {"query_pre_attn_scalar": 8},
    "phi3": {},
    "olmo3": PARTLY,
    "exaone4": PARTLY,
    "smollm3": {"no_rope_layers": [1, 0]},
    "starcoder2": {"sliding_window": WINDOW},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "mixtral": FEW | {"num_local_experts": 4},
    "deepseek_v3": LATENT
    | FEW
    | {
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
    "qwen3_next": DELTA | FEW | {"linear_num_key_heads": 2, "num_experts": 4, "rms_norm_eps": 1e-3},
    "olmo_hybrid": DELTA | {"linear_num_key_heads": 4, "rms_norm_eps": 1e-3},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48},
    "gpt_oss": PARTLY | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
}
RECURRENT = {"qwen3_next", "olmo_hybrid", "lfm2"}
NEITHER = {"gpt_oss", "bloom", "mamba2"}
"""Attention sinks, biases by distance, and a state that is written over in place."""


def model(family: str) -> PreTrainedModel:
    none = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **SIZES | none | FAMILIES[family])
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return made.float().eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_or_refused(family: str) -> None:
    policy = Policy(model(family))
    scene = of(policy.model, random_trees(6, Shape(nodes=10)), 6, LossSettings(**CLIP))
    for way in ("flat", "packed", "packed in tiles", "dfs", "dfs, computed twice"):
        name = PassName(way.split(",")[0].split(" ")[0])
        refused = family in NEITHER and name is not PassName.FLAT
        if refused or (family in RECURRENT and name is PassName.PACKED):
            with pytest.raises(RefusedError):
                choose(policy, name, budget=1 << 16)
            continue
        choose(policy, name, budget=1 << 16)
        forest = scene.packed.forest
        found = update(WAYS[way](policy), policy.model, scene.packed, [forest], scene.settings, scene.old_T)
        assert_true(found, scene.truth, f"{family}, {way}")
