"""Which kinds of models are served, and which are refused: by name, by structure, by numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from gyre.elastic.engine.models.check import check_config, check_structure
from gyre.elastic.engine.models.compare import check_logits
from gyre.elastic.engine.models.load import max_positions
from gyre.proxy.errors import EngineError

SMALL: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}


def config(kind: str, **values: Any) -> PreTrainedConfig:
    made: PreTrainedConfig = getattr(transformers, f"{kind}Config")(**(SMALL | values))
    return made


def network(kind: str, dtype: torch.dtype = torch.float32, **values: Any) -> PreTrainedModel:
    """A random model of a family."""
    torch.manual_seed(0)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config(kind, **values), dtype=dtype)
    return made.eval()


def check(model: PreTrainedModel) -> None:
    check_config(model.config)
    check_structure(model)
    check_logits(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("Llama", {}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 8}),
        ("Qwen3", {"head_dim": 8, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}),
        ("Qwen3Moe", MOE),
        ("Mistral", {"sliding_window": 64, "head_dim": 8}),
        ("Gemma3Text", {"sliding_window": 64, "head_dim": 8}),
        ("Olmo3", {"sliding_window": 64}),
        ("Phi3", {}),
        ("SmolLM3", {}),
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    ],
)
def test_full_and_sliding_attention_is_served(kind: str, values: dict[str, Any], dtype: torch.dtype) -> None:
    model = network(kind, dtype, **values)
    check(model)
    assert model.config.to_dict().get("sliding_window") == values.get("sliding_window")


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("Qwen3Next", MOE, "recurrent"),
        ("Qwen3_5Text", {}, "recurrent"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "state"),
        ("Llama4Text", {"num_local_experts": 2}, "chunked attention"),
        (
            "Llama4Text",
            {"num_local_experts": 2, "layer_types": ["full_attention"] * 2},
            "attn_temperature_tuning",
        ),
        ("Gemma2", {"head_dim": 8}, "capped attention scores"),
        ("T5", {}, "encoder"),
        ("Falcon", {"alibi": True}, "ALiBi"),
        ("Llama", {"quantization_config": {"quant_method": "fp8"}}, "quantized"),
    ],
)
def test_what_the_configuration_tells_is_refused_before_weights_are_read(
    kind: str, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(EngineError, match=reason) as caught:
        check_config(config(kind, **values))
    assert "vLLM" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("Mamba", {}, "recurrent"),
        ("GptOss", {"num_local_experts": 4, "head_dim": 8}, "sinks"),
        ("Bloom", {"n_head": 4}, "no other attention function"),
    ],
)
def test_what_the_network_shows_is_refused(kind: str, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        check_structure(network(kind, **values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DiffLlama", {}),
        ("GptOss", {"num_local_experts": 4, "head_dim": 8}),
        ("Llama4Text", {"num_local_experts": 2, "attention_chunk_size": 4, "no_rope_layers": [1, 1]}),
    ],
)
def test_attention_of_another_kind_shows_in_the_numbers(
    kind: str, values: dict[str, Any], dtype: torch.dtype
) -> None:
    with pytest.raises(EngineError, match="other logits"):
        check_logits(network(kind, dtype, **values))


def test_a_window_that_the_engine_is_not_told_of_is_noticed_with_few_tokens() -> None:
    windows = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    model = network("Qwen3", head_dim=8, **windows)
    for layer in model.get_decoder().layers:
        layer.self_attn.sliding_window = None
    with pytest.raises(EngineError, match="other logits"):
        check_logits(model)


def test_a_small_difference_shows_in_fp32() -> None:
    with pytest.raises(EngineError, match="other logits"):
        check_logits(network("Gemma2", head_dim=8, attn_logit_softcapping=1.0))


@pytest.mark.parametrize("kind", ["Bloom", "Nemotron", "Lfm2"])
def test_a_pass_that_breaks_is_a_refusal_too(kind: str) -> None:
    values = {"Lfm2": {"layer_types": ["conv", "full_attention"]}}.get(kind, {})
    with pytest.raises(EngineError, match=r"cannot serve|differ"):
        check_logits(network(kind, n_head=4, **values))


def test_attention_of_another_form_says_so() -> None:
    with pytest.raises(EngineError, match="not called as the engine's is"):
        check_logits(network("Nemotron"))


def test_positions_end_where_the_rotation_of_a_kind_of_layer_changes() -> None:
    longer = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 128}
    longer |= {"rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    ropes = {"full_attention": longer, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    gemma = config("Gemma3Text", rope_parameters=ropes, head_dim=8)
    assert max_positions("gemma", gemma) == 128
    assert max_positions("gpt2", config("GPT2", n_positions=64, max_position_embeddings=64)) == 64


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = network("Llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[3] = float("nan")  # type: ignore[operator, index]
        model.get_output_embeddings().weight[3] = float("nan")  # type: ignore[operator, index]
    with pytest.raises(EngineError, match="nan"):
        check_logits(model)
