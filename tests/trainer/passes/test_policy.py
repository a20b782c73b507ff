"""Loading what is trained, and what is said about models and files that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForSequenceClassification

from gyre.trainer.errors import RefusedError, TrainError
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy, load_policy
from gyre.trainer.settings import Device, Dtype
from tests.trainer.models import KINDS, SIZES, Kind, tiny_model
from tests.trainer.passes.compare import batch, difference, trained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
def test_head_of_hidden_states_is_the_model(kind: Kind) -> None:
    model = tiny_model(kind)
    policy = Policy(model)
    ids_1S = torch.arange(20)[None]
    with torch.no_grad():
        logits_SV = policy.head(policy.hidden(ids_1S)[0])
        assert torch.allclose(logits_SV, model(input_ids=ids_1S).logits[0], atol=1e-5)


def test_loads_a_folder_in_fp32(folder: Path) -> None:
    tiny_model("llama").to(torch.bfloat16).save_pretrained(folder)
    policy = load_policy(folder, device=Device.CPU)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in policy.model.parameters())
    assert not policy.model.training


def test_weights_are_no_map_of_the_file(folder: Path) -> None:
    """A checkpoint may be written over the folder that training started from."""
    policy = load_policy(folder, device=Device.CPU)
    before = [parameter.clone() for parameter in policy.model.parameters()]
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    for kept, now in zip(before, policy.model.parameters(), strict=True):
        assert torch.equal(kept, now)


def test_names_work_as_for_the_engine() -> None:
    assert load_policy("tiny", device=Device.CPU).vocab_size == 2048


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def lost_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def nan_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def classifier(folder: Path) -> None:
    LlamaForSequenceClassification(LlamaConfig(**SIZES, pad_token_id=0)).save_pretrained(folder)


def quantized(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_config, r"no config\.json"),
        (cut_weights, r"weights of .* are not usable"),
        (lost_tensor, r"lack `model\.norm\.weight`"),
        (nan_tensor, r"`model\.norm\.weight` has values that are not finite"),
        (classifier, r"no causal language model"),
        (quantized, r"quantized weights"),
    ],
)
def test_damaged_folders(folder: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(folder)
    with pytest.raises(TrainError, match=message):
        load_policy(folder, device=Device.CPU)


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="no such model") as caught:
        load_policy(tmp_path / "none")
    assert "tiny" in caught.value.hint
    with pytest.raises(TrainError, match="cannot be trained"):
        load_policy("model.gguf")


def test_scaled_logits_are_refused() -> None:
    with pytest.raises(RefusedError, match="cap or scale their logits"):
        Policy(GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)))


def test_dropout_stays_off() -> None:
    """Or pi and pi_old would be different functions."""
    model = tiny_model("llama", attention_dropout=0.5).train()
    policy = Policy(model)
    packed, temperature_K = batch(1)
    one, _ = trained(model, FlatPass(policy), packed, temperature_K)
    two, _ = trained(model, FlatPass(policy), packed, temperature_K)
    assert torch.equal(one.logprobs_K, two.logprobs_K)


def test_attention_is_put_back() -> None:
    policy = Policy(tiny_model())
    packed, temperature_K = batch(1)
    PackedPass(policy)(packed.forest, temperature_K)
    assert policy.model.config._attn_implementation == policy.stock == "sdpa"


@pytest.mark.parametrize("kind", ["qwen3", "mixed"])
def test_bf16_computes_and_fp32_is_kept(kind: Kind) -> None:
    model = tiny_model(kind)
    packed, temperature_K = batch(5)
    _, exact = trained(model, FlatPass(Policy(model)), packed, temperature_K)
    policy = Policy(model, dtype=Dtype.BF16)
    for tree_pass in (FlatPass(policy), PackedPass(policy)):
        _, found = trained(model, tree_pass, packed, temperature_K)
        assert {gradient.dtype for gradient in found.values()} == {torch.float32}
        assert 1e-5 < difference(found, exact) < 0.2
