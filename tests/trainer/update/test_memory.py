"""The estimate of `--dry-run` against what a model keeps and allocates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gyre.trainer.errors import TrainError
from gyre.trainer.pack.work import Work
from gyre.trainer.settings import Dtype, LossSettings, PassName, TrainSettings
from gyre.trainer.update.memory import Sizes, empty_model, estimate, sizes
from tests.trainer.models import Kind, tiny_model

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 192, "head_dim": 32, "num_hidden_layers": 4}
WIDE = Sizes(
    parameters=1000, trained=600, hidden=8, layers=2, queries=16, keys=4, feed_forward=24, vocabulary=100
)
"""A layer keeps 16 x 8 + 4 x (2 x 8 + 4 x (16 + 4) + 4 x 24) = 896 bytes a token, the end 12 x 8 = 96."""


def kept(model: PreTrainedModel, tokens: int) -> int:
    """Bytes that the backward pass of a plain forward pass needs, without weights."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    ids_1S = torch.arange(tokens)[None] % 97
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.get_decoder()(input_ids=ids_1S, use_cache=False)
        size = sum(storage.nbytes() for storage in found.values())
    del out
    return size


@pytest.mark.parametrize(("kind", "least"), [("qwen3", 0.95), ("llama", 0.75)])
def test_activations_are_what_a_forward_pass_keeps_and_not_less(kind: Kind, least: float) -> None:
    model = tiny_model(kind, **SIZES)
    settings = TrainSettings(tree_pass=PassName.PACKED)
    work = [Work(tokens=tokens, targets=tokens, longest_path=tokens) for tokens in (256, 128)]
    sized = sizes(model, ["*"], [])
    expected = [estimate(sized, settings, each).activations for each in work]
    found = kept(model, 256) - kept(model, 128)
    assert least <= found / (expected[0] - expected[1]) <= 1.02


def test_the_formula_by_hand() -> None:
    packed = TrainSettings(tree_pass=PassName.PACKED, token_budget=50)
    work = Work(tokens=200, targets=10, longest_path=70)
    found = estimate(WIDE, packed, work)
    assert (found.weights, found.gradients, found.optimizer, found.reference) == (4000, 2400, 4800, 0)
    assert found.activations == 70 * (2 * 896 + 96)
    assert (found.keys, found.head) == (0, 3 * 4 * 100 * 10)
    assert found.total == 4000 + 2400 + 4800 + found.activations + found.head


def test_recomputation_keeps_the_budget_only_and_dfs_keys_of_the_path() -> None:
    work = Work(tokens=200, targets=10, longest_path=70)
    dfs = TrainSettings(tree_pass=PassName.DFS, token_budget=50)
    assert estimate(WIDE, dfs, work).activations == 50 * (2 * 896 + 96)
    assert estimate(WIDE, dfs, work).keys == 16 * 70 * 2 * 4
    kept_path = TrainSettings(tree_pass=PassName.DFS, token_budget=50, recompute=False)
    assert estimate(WIDE, kept_path, work).activations == 70 * (2 * 896 + 96)


def test_bf16_has_copies_of_the_weights_and_a_divergence_a_second_model() -> None:
    settings = TrainSettings(dtype=Dtype.BF16, loss=LossSettings(kl=0.1))
    found = estimate(WIDE, settings, Work(tokens=1, longest_path=1))
    assert (found.weights, found.reference) == (6000, 4000)


def test_no_more_tokens_than_there_are() -> None:
    settings = TrainSettings(tree_pass=PassName.PACKED)
    assert estimate(WIDE, settings, Work(tokens=5, longest_path=5)).activations == 5 * (2 * 896 + 96)


def test_sizes_are_those_of_a_model_that_is_never_loaded() -> None:
    model = tiny_model("qwen3")
    empty = empty_model(model.config)
    assert all(own.device.type == "meta" for own in empty.parameters())
    assert sizes(empty, ["*"], []) == sizes(model, ["*"], [])
    some = sizes(empty, ["*norm*"], [])
    assert some.trained == sum(own.numel() for name, own in model.named_parameters() if "norm" in name)
    assert some.parameters == sum(own.numel() for own in model.parameters())
    with pytest.raises(TrainError, match="no parameter is called"):
        sizes(empty, ["*nrom.x*"], [])


def test_of_experts_those_count_that_a_token_goes_through() -> None:
    assert sizes(tiny_model("moe"), ["*"], []).feed_forward == 2 * 16
