"""Attention of a whole piece through torch's own, tile by tile: the way of `packed` on CPU.

Shapes: N tokens, H query heads, K key heads, D head_dim; R rows of a tile, L its keys, C those of a band.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.bands import band, bias, cut_out
from gyre.trainer.passes.masks import CALL, ROWS, Tile, seen, tiles


class Tiled:
    """An `Attend`. What is needed for a window is made when a layer first asks for it, and kept."""

    def __init__(self, piece: Piece, rows: int = ROWS, call: int = CALL) -> None:
        self._piece = piece
        self._rows = rows
        self._call = call
        self._windows: dict[tuple[int | None, torch.dtype], list[_Cut]] = {}

    def attend(
        self,
        layer: int,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KND: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """(1, N, H, D)"""
        cuts = self._cuts(window, query_1HND)
        queries = torch.split(query_1HND, [len(cut.tile) for cut in cuts], 2)
        outs = [
            F.scaled_dot_product_attention(
                part_1HRD,
                cut.take(key_1KND),
                cut.take(value_1KND),
                attn_mask=cut.bias_RL,
                is_causal=cut.bias_RL is None,
                scale=scaling,
                enable_gqa=True,
            ).transpose(1, 2)
            for cut, part_1HRD in zip(cuts, queries, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 1)

    def _cuts(self, window: int | None, like: torch.Tensor) -> list[_Cut]:
        kept = self._windows.get((window, like.dtype))
        if kept is None:
            kept = self._make(window, like)
            self._windows[window, like.dtype] = kept
        return kept

    def _make(self, window: int | None, like: torch.Tensor) -> list[_Cut]:
        found = tiles(self._piece, window, self._rows, self._call)
        runs = [tile for tile in found if tile.run and not tile.plain]
        band_RC = band(
            max((len(tile) for tile in runs), default=0),
            max((len(tile.keys_L) for tile in runs), default=0),
            window,
            like,
        )
        return [self._one(tile, window, band_RC, like) for tile in found]

    def _one(self, tile: Tile, window: int | None, band_RC: torch.Tensor, like: torch.Tensor) -> _Cut:
        if tile.plain:
            return _Cut(tile, None, like.device)
        if tile.run:
            return _Cut(tile, cut_out(band_RC, len(tile), len(tile.keys_L)), like.device)
        seen_RL = torch.from_numpy(seen(self._piece, tile, window)).to(like.device)
        return _Cut(tile, bias(seen_RL, like.dtype), like.device)


class _Cut:
    """A tile on the device."""

    def __init__(self, tile: Tile, bias_RL: torch.Tensor | None, device: torch.device) -> None:
        self.tile = tile
        self.bias_RL = bias_RL
        """None: the causal mask of a sequence that begins here."""
        keys_L = tile.keys_L
        self._narrow = (int(keys_L[0]), len(keys_L)) if np.all(np.diff(keys_L) == 1) else None
        self._keys_L = torch.from_numpy(keys_L).to(device)

    def take(self, kv_1KND: torch.Tensor) -> torch.Tensor:
        """(1, K, L, D)"""
        if self._narrow is not None:
            return kv_1KND.narrow(2, *self._narrow)
        return kv_1KND.index_select(2, self._keys_L)
