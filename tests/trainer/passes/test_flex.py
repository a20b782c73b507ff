"""FlexAttention's blocks, made without an N x N mask, against that mask."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.blocks import SIZE, Blocked
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import load_policy
from gyre.trainer.settings import Device, Dtype
from tests.trainer.passes.compare import batch, dense, difference, forest, trained

WINDOWS = st.none() | st.integers(1, 200)
EAGER = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def blocks(listed: tuple[torch.Tensor, torch.Tensor]) -> np.typing.NDArray[np.bool_]:
    """(C, C) from counts and indices, as the kernel reads them."""
    counts_C, which_CC = listed[0][0, 0].numpy(), listed[1][0, 0].numpy()
    found_CC = np.zeros(which_CC.shape, dtype=bool)
    for row, count in enumerate(counts_C):
        found_CC[row, which_CC[row, :count]] = True
    return found_CC


def padded(piece: Piece, window: int | None, length: int) -> np.typing.NDArray[np.bool_]:
    seen_MM = np.eye(length, dtype=bool)
    seen_MM[: len(piece), : len(piece)] = dense(piece, window)
    return seen_MM


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), window=WINDOWS)
def test_blocks_cover_the_mask(seed: int, window: int | None) -> None:
    piece = forest(seed, tokens=700)
    tree = Blocked(piece, torch.device("cpu"))
    mask = tree.block_mask(window)
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    part_CC = blocks((mask.kv_num_blocks, mask.kv_indices))
    full_CC = blocks((mask.full_kv_num_blocks, mask.full_kv_indices))
    count = tree.length // SIZE
    seen_MM = padded(piece, window, tree.length)
    seen_CSCS = seen_MM.reshape(count, SIZE, count, SIZE)
    any_CC, all_CC = seen_CSCS.any((1, 3)), seen_CSCS.all((1, 3))
    assert not (part_CC & full_CC).any()
    assert not (any_CC & ~(part_CC | full_CC)).any()
    assert not (full_CC & ~all_CC).any()
    if window is None:
        assert np.array_equal(part_CC | full_CC, any_CC)
        assert np.array_equal(full_CC, all_CC)

    index_M = torch.arange(tree.length)
    given_MM = mask.mask_mod(index_M[:1], index_M[:1], index_M[:, None], index_M[None])
    assert np.array_equal(given_MM.numpy(), seen_MM)


@EAGER
@pytest.mark.parametrize("window", [None, 40])
def test_attends_as_the_mask(window: int | None) -> None:
    piece = forest(3, tokens=300)
    tree = Blocked(piece, torch.device("cpu"), lambda: flex_attention)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        query, key, value = (torch.randn(1, heads, tree.length, 16) for heads in (4, 2, 2))
    mask_MM = torch.from_numpy(padded(piece, window, tree.length))
    with torch.no_grad():
        found = tree.attend(0, query, key, value, scaling=0.3, window=window)
        wanted = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask_MM, scale=0.3, enable_gqa=True
        )
    assert torch.allclose(found.transpose(1, 2), wanted, atol=1e-5)


def test_the_library_makes_the_same_blocks() -> None:
    piece = forest(8, tokens=500)
    tree = Blocked(piece, torch.device("cpu"))
    mask = tree.block_mask(None)
    library = create_block_mask(mask.mask_mod, 1, 1, tree.length, tree.length, device="cpu", BLOCK_SIZE=SIZE)
    assert torch.equal(mask.to_dense(), library.to_dense())
    assert torch.equal(mask.full_kv_num_blocks, library.full_kv_num_blocks)


@pytest.mark.slow
def test_compiled_once_for_all_lengths_and_windows() -> None:
    """Twice: with and without a window."""
    graphs: list[object] = []

    def count(graph: Callable[..., Any], inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph

    compiled = torch.compile(flex_attention, dynamic=True, backend=count)
    for tokens, window in product((300, 700, 130, 40), (None, 40, 90)):
        tree = Blocked(forest(tokens, tokens), torch.device("cpu"), lambda: compiled)
        query, key, value = (torch.randn(1, heads, tree.length, 16) for heads in (4, 2, 2))
        with torch.no_grad():
            tree.attend(0, query, key, value, scaling=0.3, window=window)
    assert len(graphs) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has no backward pass on CPU")
@pytest.mark.parametrize("dtype", Dtype)
def test_packed_equals_flat_on_a_gpu(dtype: Dtype) -> None:
    policy = load_policy("tiny", device=Device.CUDA, dtype=dtype)
    tolerance = {Dtype.FP32: 1e-3, Dtype.BF16: 0.05}[dtype]
    for seed in (2, 5):
        packed, temperature_K = batch(seed, executions=20, longest=60)
        wanted, wanted_gradients = trained(policy.model, FlatPass(policy), packed, temperature_K)
        found, found_gradients = trained(policy.model, PackedPass(policy), packed, temperature_K)
        assert found.loss == pytest.approx(wanted.loss, rel=tolerance)
        assert difference(found_gradients, wanted_gradients) < tolerance
