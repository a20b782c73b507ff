"""A folder becomes the model's weights whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gyre.elastic.engine.models.tiny import make_tiny, save_tiny
from gyre.elastic.engine.weights.staged import StagedWeights, digest_of, stage
from gyre.proxy.errors import RequestError
from tests.engine.weights.models import loaded, qwen3, qwen3_moe

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def saved(folder: Path, model: PreTrainedModel, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    change(tensors)
    path.write_bytes(safetensors.torch.save(tensors))


def published(folder: Path, model: PreTrainedModel) -> StagedWeights:
    staged = stage(folder, loaded(model))
    staged.copy_into(loaded(model))
    return staged


def same_weights(left: PreTrainedModel, right: PreTrainedModel) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_is_then_the_one_that_was_saved(tmp_path: Path, tied: bool) -> None:
    trained, served = qwen3(1, tied=tied), qwen3(2, tied=tied)
    parameters = list(served.parameters())
    memory = [parameter.data_ptr() for parameter in parameters]
    staged = published(saved(tmp_path, trained), served)
    assert same_weights(served, trained)
    assert all(now is before for now, before in zip(served.parameters(), parameters, strict=True))
    assert [parameter.data_ptr() for parameter in parameters] == memory
    assert staged.folder == tmp_path
    assert staged.n_bytes == sum(parameter.numel() * 4 for parameter in parameters)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(served(ids).logits, trained(ids).logits)


def test_staging_changes_nothing_that_is_served(tmp_path: Path) -> None:
    served = qwen3(2)
    before = digest_of(served)
    stage(saved(tmp_path, qwen3(1)), loaded(served))
    assert digest_of(served) == before


def test_shards_are_one_model(tmp_path: Path) -> None:
    trained, served = qwen3(1), qwen3(2)
    published(saved(tmp_path, trained, max_shard_size="10KB"), served)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert same_weights(served, trained)


def test_the_same_weights_under_another_config_are_another_policy() -> None:
    """KV and log-probabilities of one are not those of the other."""
    far = {"rope_type": "default", "rope_theta": 100.0}
    assert digest_of(qwen3(1)) != digest_of(qwen3(1, rope_parameters=far))
    assert digest_of(qwen3(1)) == digest_of(qwen3(1, attention_dropout=0.1))


def test_the_digest_is_of_the_policy_not_of_its_files(tmp_path: Path) -> None:
    trained, served = qwen3(1), qwen3(2)
    staged = stage(saved(tmp_path / "one", trained), loaded(served))
    sharded = stage(saved(tmp_path / "many", trained, max_shard_size="10KB"), loaded(served))
    assert staged.digest == sharded.digest == digest_of(trained)
    assert staged.digest != digest_of(served)
    staged.copy_into(loaded(served))
    assert staged.digest == digest_of(served)
    with torch.no_grad():
        served.get_parameter(NORM)[0] += 1e-6
    assert staged.digest != digest_of(served)


def test_tiny_is_published_into_tiny(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=1)
    served = make_tiny().model
    assert published(tmp_path, served).digest == digest_of(served) == digest_of(make_tiny(1).model)


@pytest.mark.parametrize("file", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("engine", [torch.float32, torch.bfloat16])
def test_floating_types_are_cast_to_the_engine_s(
    tmp_path: Path, file: torch.dtype, engine: torch.dtype
) -> None:
    trained, served = qwen3(1, dtype=file), qwen3(2, dtype=engine)
    staged = published(saved(tmp_path, trained), served)
    assert {parameter.dtype for parameter in served.parameters()} == {engine}
    assert same_weights(served, trained.to(dtype=engine))
    assert staged.digest == digest_of(served)


def test_integers_are_not_weights(tmp_path: Path) -> None:
    rewrite(saved(tmp_path, qwen3()), lambda all_: all_.update({NORM: torch.ones(32, dtype=torch.int32)}))
    error = refused(tmp_path, qwen3())
    assert (
        error.message
        == f"{tmp_path}/model.safetensors: {NORM} is torch.int32, in the model it is torch.float32"
    )


def refused(folder: Path, model: PreTrainedModel) -> RequestError:
    """What `stage` raises; the model stays as it was."""
    before = digest_of(model)
    with pytest.raises(RequestError) as error:
        stage(folder, loaded(model))
    assert digest_of(model) == before
    return error.value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_value_that_is_not_finite_is_refused(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    trained = qwen3(dtype=dtype)
    with torch.no_grad():
        trained.get_parameter("model.layers.1.mlp.up_proj.weight")[-1, -1] = value
    error = refused(saved(tmp_path, trained), qwen3())
    assert error.message.endswith("model.layers.1.mlp.up_proj.weight has values that are not finite")
    assert error.status == 400


def test_a_value_too_large_for_the_engine_is_refused(tmp_path: Path) -> None:
    trained = qwen3(dtype=torch.float64)
    with torch.no_grad():
        trained.get_parameter(NORM)[0] = 1e300
    assert f"{NORM} has values that are not finite" in refused(saved(tmp_path, trained), qwen3()).message


def test_a_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    rewrite(saved(tmp_path, qwen3()), lambda all_: all_.update({NORM: torch.ones(31)}))
    error = refused(tmp_path, qwen3())
    assert (
        error.message == f"{tmp_path}/model.safetensors: {NORM} has the shape [31], in the model it is [32]"
    )
    assert (error.status, error.code) == (409, "weights_refused")


def test_a_weight_that_lacks_is_refused(tmp_path: Path) -> None:
    rewrite(saved(tmp_path, qwen3()), lambda all_: all_.pop(NORM))
    error = refused(tmp_path, qwen3())
    assert error.message == f"{tmp_path} lacks {NORM}, which Qwen3ForCausalLM has"
    assert error.status == 409


def test_a_weight_too_many_is_refused(tmp_path: Path) -> None:
    rewrite(saved(tmp_path, qwen3()), lambda all_: all_.update({"model.layers.2.more": torch.ones(1)}))
    error = refused(tmp_path, qwen3())
    assert error.message == f"{tmp_path} has model.layers.2.more, which Qwen3ForCausalLM has not"


def test_buffers_that_are_computed_may_be_listed(tmp_path: Path) -> None:
    trained, served = qwen3(1), qwen3(2)
    rewrite(saved(tmp_path, trained), lambda all_: all_.update({"model.rotary_emb.inv_freq": torch.ones(3)}))
    published(tmp_path, served)
    assert same_weights(served, trained)


@pytest.mark.parametrize("name", [HEAD, EMBEDDING])
def test_a_tied_weight_may_come_under_either_name_or_both(tmp_path: Path, name: str) -> None:
    trained, served = qwen3(1), qwen3(2)
    weight = trained.get_parameter(EMBEDDING).detach().clone()
    saved(tmp_path, trained)
    rewrite(tmp_path, lambda all_: all_.update({HEAD: weight}))
    published(tmp_path, served)
    assert same_weights(served, trained)
    other = EMBEDDING if name == HEAD else HEAD
    rewrite(tmp_path, lambda all_: all_.pop(other))
    served = qwen3(2)
    assert published(tmp_path, served).digest == digest_of(trained)


def test_a_tied_weight_that_differs_is_refused(tmp_path: Path) -> None:
    rewrite(saved(tmp_path, qwen3()), lambda all_: all_.update({HEAD: all_[EMBEDDING] + 1}))
    error = refused(tmp_path, qwen3())
    assert error.message == f"{tmp_path}: {EMBEDDING} differs from {HEAD}, but the model ties them" or (
        error.message == f"{tmp_path}: {HEAD} differs from {EMBEDDING}, but the model ties them"
    )


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path, qwen3()) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    error = refused(tmp_path, qwen3())
    assert str(path) in error.message and error.status == 400


# -- models whose files are not what their modules are --------------------------------------------


def test_experts_are_stacked_as_transformers_does(tmp_path: Path) -> None:
    trained, served = qwen3_moe(1), qwen3_moe(2)
    saved(tmp_path, trained)
    names = safetensors.torch.load((tmp_path / "model.safetensors").read_bytes()).keys()
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in names - served.state_dict().keys()
    staged = published(tmp_path, served)
    assert same_weights(served, trained)
    assert staged.digest == digest_of(trained)


def test_a_missing_expert_is_refused(tmp_path: Path) -> None:
    lost = [f"model.layers.0.mlp.experts.3.{part}_proj.weight" for part in ("up", "gate", "down")]
    saved(tmp_path, qwen3_moe())
    rewrite(tmp_path, lambda all_: [all_.pop(name) for name in lost])
    error = refused(tmp_path, qwen3_moe())
    assert "model.layers.0.mlp.experts" in error.message and error.status == 409


def test_half_an_expert_is_refused(tmp_path: Path) -> None:
    rewrite(
        saved(tmp_path, qwen3_moe()), lambda all_: all_.pop("model.layers.0.mlp.experts.3.up_proj.weight")
    )
    error = refused(tmp_path, qwen3_moe())
    assert error.message.startswith(f"{tmp_path} cannot be made a Qwen3MoeForCausalLM")
    assert error.status == 409


def test_experts_are_finite_too(tmp_path: Path) -> None:
    trained = qwen3_moe()
    with torch.no_grad():
        trained.get_parameter("model.layers.0.mlp.experts.down_proj")[2, 0, 0] = float("nan")
    assert "experts.down_proj has values" in refused(saved(tmp_path, trained), qwen3_moe()).message


def test_names_without_the_model_s_prefix_are_understood(tmp_path: Path) -> None:
    trained, served = qwen3(1), qwen3(2)
    saved(tmp_path, trained.get_submodule("model"))  # type: ignore[arg-type]
    (tmp_path / "config.json").unlink()  # it names the class of the part
    published(tmp_path, served)
    assert same_weights(served, trained)


# -- the folder's config ---------------------------------------------------------------------------


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_folder_needs_no_config(tmp_path: Path) -> None:
    trained, served = qwen3(1), qwen3(2)
    (saved(tmp_path, trained) / "config.json").unlink()
    published(tmp_path, served)
    assert same_weights(served, trained)


def test_a_config_may_differ_in_what_changes_no_output(tmp_path: Path) -> None:
    saved(tmp_path, qwen3(1))
    set_config(
        tmp_path, use_cache=False, eos_token_id=3, attention_dropout=0.1, dtype="bfloat16", _name_or_path="x"
    )
    published(tmp_path, qwen3(2))


@pytest.mark.parametrize(
    ("values", "problem", "status"),
    [
        ({"model_type": "llama"}, "is of a llama model, this engine serves qwen3", 409),
        ({"architectures": ["Qwen3Model"]}, "is of Qwen3Model, this engine serves Qwen3ForCausalLM", 409),
        ({"hidden_size": 64}, "says hidden_size = 64, this engine's model has 32", 409),
        ({"num_attention_heads": 8}, "says num_attention_heads = 8, this engine's model has 4", 409),
        ({"rms_norm_eps": 1e-5}, "says rms_norm_eps = 1e-05", 409),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "says rope_parameters", 409),
        ({"tie_word_embeddings": False}, "says tie_word_embeddings = False", 409),
        ({"quantization_config": {"bits": 4}}, "says quantization_config", 409),
        ({"hidden_size": "large"}, "is not a config of qwen3", 400),
    ],
)
def test_a_config_of_another_model_is_refused(
    tmp_path: Path, values: dict[str, Any], problem: str, status: int
) -> None:
    saved(tmp_path, qwen3(1))
    set_config(tmp_path, **values)
    error = refused(tmp_path, qwen3(2))
    assert problem in error.message and str(tmp_path / "config.json") in error.message
    assert error.status == status


def test_a_model_they_were_not_checked_for_stays_as_it_is(tmp_path: Path) -> None:
    staged = stage(saved(tmp_path, qwen3(1)), loaded(qwen3(2)))
    other = qwen3(2, intermediate_size=64)
    before = digest_of(other)
    with pytest.raises(ValueError, match="checked for another model"):
        staged.copy_into(loaded(other))
    assert digest_of(other) == before
