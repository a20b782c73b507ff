"""FlexAttention over a whole piece: the way of `packed` on CUDA.

Which blocks of 128 queries and 128 keys are looked at is told from bounds of `tout` and depth in each block;
nothing of size N x N is ever made. Below the diagonal block, where all keys come before all queries, query q
sees key k when q < tout[k] (and their depths differ by less than the window). So of the blocks at rows
[a, b) and a column of keys

    some pair is seen   iff  max tout > a     (the key with the largest tout is seen from row a)
    all pairs are seen  iff  min tout >= b

With a window the first is a bound only, and the mask decides pair by pair; the second stays exact.

Shapes: N tokens of a piece, M as many as fill whole blocks, C blocks; H query heads, K key heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gyre.trainer.pack.piece import Bools, Ints, Piece

SIZE = 128
"""Tokens of a block."""


@cache
def _compiled() -> Callable[..., torch.Tensor]:
    """Once for all lengths: compiled anew for each, it would take seconds a piece."""
    return torch.compile(flex_attention, dynamic=True)


class Blocked:
    """An `Attend` over M tokens, of which those behind the piece are padding."""

    def __init__(
        self,
        piece: Piece,
        device: torch.device,
        attention: Callable[[], Callable[..., torch.Tensor]] = _compiled,
    ) -> None:
        """`attention` gives `flex_attention`, compiled or not."""
        # Two at least: what is compiled for many blocks is not used for one.
        self.length = max(2, -(-len(piece) // SIZE)) * SIZE
        self._attention = attention
        # Padding sees itself, so that no row is empty, and is seen by nothing.
        self._tout_M = np.arange(1, self.length + 1)
        self._tout_M[: len(piece)] = piece.tout_N
        self._depth_M = np.zeros(self.length, dtype=np.int64)
        self._depth_M[: len(piece)] = piece.position_ids_N
        self._device = device
        self._masks: dict[int | None, BlockMask] = {}

    def attend(
        self,
        layer: int,
        query_1HMD: torch.Tensor,
        key_1KMD: torch.Tensor,
        value_1KMD: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """(1, M, H, D)"""
        out_1HMD = self._attention()(
            query_1HMD,
            key_1KMD,
            value_1KMD,
            block_mask=self.block_mask(window),
            scale=scaling,
            enable_gqa=query_1HMD.shape[1] != key_1KMD.shape[1],
        )
        return out_1HMD.transpose(1, 2)

    def block_mask(self, window: int | None) -> BlockMask:
        """Made when a layer with this window first asks for it."""
        found = self._masks.get(window)
        if found is None:
            found = self._masks[window] = self._block_mask(window)
        return found

    def _block_mask(self, window: int | None) -> BlockMask:
        some_CC, all_CC = touched(self._tout_M, self._depth_M, window)
        tout_M = torch.from_numpy(self._tout_M.astype(np.int32)).to(self._device)
        depth_M = torch.from_numpy(self._depth_M.astype(np.int32)).to(self._device)
        return BlockMask.from_kv_blocks(
            *self._listed(some_CC & ~all_CC),
            *self._listed(all_CC),
            BLOCK_SIZE=SIZE,
            mask_mod=_mask(tout_M, depth_M, window),
            seq_lengths=(self.length, self.length),
        )

    def _listed(self, blocks_CC: Bools) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, 1, C) how many of each row, and (1, 1, C, C) which, those first."""
        which_CC = np.argsort(~blocks_CC, axis=1, kind="stable").astype(np.int32)
        counts_C = blocks_CC.sum(1, dtype=np.int32)
        return (
            torch.from_numpy(counts_C)[None, None].to(self._device),
            torch.from_numpy(which_CC)[None, None].to(self._device),
        )


def touched(tout_M: Ints, depth_M: Ints, window: int | None) -> tuple[Bools, Bools]:
    """(C, C) twice, queries by keys: blocks of which some pair may be seen, and those with all pairs."""
    tout_CS, depth_CS = tout_M.reshape(-1, SIZE), depth_M.reshape(-1, SIZE)
    start_C = np.arange(0, len(tout_M), SIZE)
    index_C = np.arange(len(start_C))
    before_CC = index_C < index_C[:, None]
    some_CC: Bools = before_CC & (tout_CS.max(1) > start_C[:, None])
    all_CC: Bools = before_CC & (tout_CS.min(1) >= start_C[:, None] + SIZE)
    if window is not None:
        some_CC &= depth_CS.min(1)[:, None] - depth_CS.max(1) < window
        all_CC &= depth_CS.max(1)[:, None] - depth_CS.min(1) < window
    return some_CC | np.eye(len(start_C), dtype=bool), all_CC


def _mask(tout_M: torch.Tensor, depth_M: torch.Tensor, window: int | None) -> Callable[..., torch.Tensor]:
    """For single pairs, in blocks that are seen in part."""

    def within(_b: Any, _h: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < tout_M[key])

    if window is None:
        return within
    # As a tensor: a number would be a constant of the compiled function, or one more kind of variable in it.
    beyond_M = depth_M - window

    def near(_b: Any, _h: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return within(_b, _h, query, key) & (depth_M[key] > beyond_M[query])

    return near
