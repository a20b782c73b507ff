"""A whole piece at once against a sequence per path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.masks import seen, tiles
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.tiled import Tiled
from tests.trainer.models import WINDOW, Kind, tiny_model
from tests.trainer.passes.compare import batch, dense, difference, trained

ATTENTION_ONLY: tuple[Kind, ...] = ("qwen3", "llama", "sliding", "mixed", "moe")


@pytest.mark.parametrize("kind", ATTENTION_ONLY)
def test_equals_flat(kind: Kind) -> None:
    model = tiny_model(kind)
    policy = Policy(model)
    for seed in (2, 5):
        packed, temperature_K = batch(seed)
        wanted, wanted_gradients = trained(model, FlatPass(policy), packed, temperature_K)
        found, found_gradients = trained(model, PackedPass(policy), packed, temperature_K)
        assert torch.allclose(found.logprobs_K, wanted.logprobs_K, atol=2e-5)
        assert torch.allclose(found.entropy_K, wanted.entropy_K, atol=2e-5)
        assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
        assert difference(found_gradients, wanted_gradients) < 1e-5


@pytest.mark.parametrize("window", [None, WINDOW])
def test_one_mask_for_all_layers_would_be_wrong(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("mixed")
    policy = Policy(model)
    packed, temperature_K = batch(5)
    _, wanted = trained(model, FlatPass(policy), packed, temperature_K)
    stock = Tiled.attend

    def alike(self: Tiled, *args: Any, **kwargs: Any) -> torch.Tensor:
        return stock(self, *args, **kwargs | {"window": window})

    monkeypatch.setattr(Tiled, "attend", alike)
    _, found = trained(model, PackedPass(policy), packed, temperature_K)
    assert difference(found, wanted) > 0.1


SEEDS = st.integers(0, 10_000)
CALLS = st.sampled_from([0, 30, 10_000])
WINDOWS = st.none() | st.integers(1, 12)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, rows=st.integers(1, 40), call=CALLS, window=WINDOWS)
def test_tiles_are_the_mask(seed: int, rows: int, call: int, window: int | None) -> None:
    piece = batch(seed, longest=9)[0].forest
    found = tiles(piece, window, rows, call)
    given_NN = np.zeros((len(piece), len(piece)), dtype=bool)
    for tile in found:
        assert len(tile) <= rows or tile.plain
        given_NN[tile.start : tile.end, tile.keys_L] = seen(piece, tile, window)
    assert [tile.start for tile in found] == [0, *(tile.end for tile in found[:-1])]
    assert np.array_equal(given_NN, dense(piece, window))


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, rows=st.integers(1, 40), call=CALLS, window=WINDOWS)
def test_tiles_attend_as_the_mask(seed: int, rows: int, call: int, window: int | None) -> None:
    piece = batch(seed, longest=9)[0].forest
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        query, key, value, wish = (torch.randn(1, heads, len(piece), 8) for heads in (4, 2, 2, 4))
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    wanted = F.scaled_dot_product_attention(
        query, key, value, attn_mask=torch.from_numpy(dense(piece, window)), scale=0.3, enable_gqa=True
    )
    found = Tiled(piece, rows, call).attend(0, query, key, value, scaling=0.3, window=window)
    assert torch.allclose(found, wanted.transpose(1, 2), atol=1e-5)
    for given_grad, wanted_grad in zip(
        torch.autograd.grad(found, inputs, wish.transpose(1, 2)),
        torch.autograd.grad(wanted, inputs, wish),
        strict=True,
    ):
        assert torch.allclose(given_grad, wanted_grad, atol=1e-4)
