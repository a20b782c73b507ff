"""Attention of a run of tokens to its path: keys and values of ancestors are kept, gradients handed back.

Every attention layer has one memory for keys and values, indexed by depth, which visits write and read in
place: a branch overwrites the one before it, no visit copies its prefix. A memory of the same shape gathers
what the keys and values of a path were given as gradients by all that hangs on them; a visit takes out its
own when its backward pass gets there.

Shapes: S tokens of a visit, H query heads, K key heads, D head_dim, C tokens of a memory, L keys that are
seen, R rows of a block of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.bands import band, bias, cut_out, near
from gyre.trainer.passes.visits import Visit

ROWS = 256
"""Queries that are computed at once, each block with the keys up to its end: masked out is then at most
half of ROWS keys a query. Measured on CPU for S = 300 to 1500: as fast as a causal pass of its own."""

_Part = tuple[int, int, int, torch.Tensor | None]
"""First row, end, first key, and what is added to scores; None: a causal mask."""


class PathMemory:
    """Keys, values and their gradients on the way from a root to the visit that is computed."""

    def __init__(self, piece: Piece, *, capacity: int, gradients: bool) -> None:
        self.visit: Visit
        """The one that is computed."""
        self._piece = piece
        self._capacity = capacity
        self._gradients = gradients
        self._layers: dict[int, _Layer] = {}
        self._bands: dict[int | None, torch.Tensor] = {}
        self._cuts: dict[tuple[int | None, int, int], torch.Tensor] = {}
        self._trees: dict[int | None, torch.Tensor] = {}

    def enter(self, visit: Visit) -> None:
        """What is computed from now on."""
        self.visit = visit
        self._cuts.clear()
        self._trees.clear()

    def attend(
        self,
        layer: int,
        query_1HSD: torch.Tensor,
        key_1KSD: torch.Tensor,
        value_1KSD: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """(1, S, H, D): the visit's tokens to their ancestors and themselves."""
        depth = self.visit.depth
        low = 0 if window is None else max(0, depth - window + 1)
        memory = self._layers.get(layer)
        if memory is None:
            memory = self._layers[layer] = _Layer(key_1KSD, value_1KSD, self._capacity, self._gradients)
        key_1KLD, value_1KLD = _Append.apply(key_1KSD, value_1KSD, memory, low, self.visit)  # type: ignore[no-untyped-call]
        rows = _Rows(query_1HSD, key_1KLD, value_1KLD, depth - low, scaling)
        outs = [rows.attend(*part) for part in self._parts(query_1HSD, window, depth - low)]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 1)

    def _parts(self, query_1HSD: torch.Tensor, window: int | None, before: int) -> Iterator[_Part]:
        """What is computed at once; `before` keys come before the visit's own."""
        count = len(self.visit)
        if not self.visit.run:
            yield 0, count, 0, self._tree(query_1HSD, window, before)
        elif before == 0 and (window is None or count <= window):
            yield 0, count, 0, None
        elif window is None and query_1HSD.is_cuda and query_1HSD.dtype != torch.float32:
            yield 0, count, 0, causal_lower_right(count, before + count)
        else:
            yield from self._blocks(query_1HSD, window, before)

    def _blocks(self, query_1HSD: torch.Tensor, window: int | None, before: int) -> Iterator[_Part]:
        """Equal parts, each with the keys that it sees."""
        count = len(self.visit)
        parts = -(-count // ROWS)
        for part in range(parts):
            start, end = count * part // parts, count * (part + 1) // parts
            first = 0 if window is None else max(0, before + start - window + 1)
            yield start, end, first, self._cut(query_1HSD, window, end - start, before + end - first)

    def _cut(self, query_1HSD: torch.Tensor, window: int | None, rows: int, keys: int) -> torch.Tensor:
        """(R, L) of the band, which looks the same from every query: the last key is the last row's own."""
        cut_RL = cut_out(self._band(query_1HSD, window), rows, keys)
        if not query_1HSD.is_cuda:
            return cut_RL
        # Kernels there want rows that are aligned. Layers share them; only few have other sizes.
        if (key := (window, rows, keys)) not in self._cuts:
            self._cuts[key] = cut_RL.contiguous()
        return self._cuts[key]

    def _band(self, query_1HSD: torch.Tensor, window: int | None) -> torch.Tensor:
        """(ROWS, C + ROWS) to add to scores: row i sees its own key, number C + i, and `window` with it."""
        if window not in self._bands:
            width = self._capacity if window is None else min(self._capacity, window)
            self._bands[window] = band(ROWS, width, window, query_1HSD)
        return self._bands[window]

    def _tree(self, query_1HSD: torch.Tensor, window: int | None, before: int) -> torch.Tensor:
        """(S, before + S) to add to scores, for subtrees beside each other."""
        if window not in self._trees:
            seen_SL = self._visible(window, before, query_1HSD.device)
            self._trees[window] = bias(seen_SL, query_1HSD.dtype)
        return self._trees[window]

    def _visible(self, window: int | None, before: int, device: torch.device) -> torch.Tensor:
        visit, piece = self.visit, self._piece
        own = slice(visit.start, visit.end)
        depth_S = torch.from_numpy(piece.position_ids_N[own]).to(device)
        end_S = torch.from_numpy(piece.tout_N[own]).to(device) - visit.start
        index_S = torch.arange(len(visit), device=device)
        above_P = torch.arange(visit.depth - before, visit.depth, device=device)
        seen_SS = (index_S <= index_S[:, None]) & (index_S[:, None] < end_S)
        seen_SP = torch.ones(len(visit), before, dtype=torch.bool, device=device)
        distance_SL = depth_S[:, None] - torch.cat((above_P, depth_S))
        return torch.cat((seen_SP, seen_SS), 1) & near(distance_SL, window)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Attention of some of a visit's queries."""

    query_1HSD: torch.Tensor
    key_1KLD: torch.Tensor
    value_1KLD: torch.Tensor
    before: int
    """Keys before the visit's own."""
    scaling: float | None

    def attend(self, start: int, end: int, first: int, bias: torch.Tensor | None) -> torch.Tensor:
        """(1, R, H, D) of rows `start` to `end` to keys from `first` on; see `_Part`."""
        stop = self.before + end
        out_1HRD = F.scaled_dot_product_attention(
            self.query_1HSD[:, :, start:end],
            self.key_1KLD[:, :, first:stop],
            self.value_1KLD[:, :, first:stop],
            attn_mask=bias,
            is_causal=bias is None,
            scale=self.scaling,
            enable_gqa=True,
        )
        return out_1HRD.transpose(1, 2)


class _Layer:
    """The memory of one layer: (2, 1, K, C, D), keys and values."""

    def __init__(
        self, key_1KSD: torch.Tensor, value_1KSD: torch.Tensor, capacity: int, gradients: bool
    ) -> None:
        kv = (key_1KSD, value_1KSD)
        sizes = [(*one_1KSD.shape[:2], capacity, one_1KSD.shape[3]) for one_1KSD in kv]
        self.kv = [one_1KSD.new_empty(size) for one_1KSD, size in zip(kv, sizes, strict=True)]
        # fp32, also where keys are not: many branches add to the first tokens of a path.
        self.gradients = [
            torch.zeros(size, dtype=torch.float32, device=key_1KSD.device) for size in sizes if gradients
        ]


class _Append(torch.autograd.Function):
    """Writes a visit's keys and values behind its prefix; hands the prefix's gradients back."""

    @staticmethod
    def forward(
        ctx: Any, key_1KSD: torch.Tensor, value_1KSD: torch.Tensor, memory: _Layer, low: int, visit: Visit
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, K, L, D) twice: depths `low` to the visit's last, in the memory itself."""
        ctx.memory, ctx.low, ctx.visit = memory, low, visit
        end = visit.depth + len(visit)
        for kept, new_1KSD in zip(memory.kv, (key_1KSD, value_1KSD), strict=True):
            kept[:, :, visit.depth : end] = new_1KSD
        # `.data` has a version counter of its own. Autograd cannot tell that visits after this one write
        # behind what it sees, and would refuse its backward pass.
        key_1KLD, value_1KLD = (kept.data[:, :, low:end] for kept in memory.kv)
        return key_1KLD, value_1KLD

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        visit, low = ctx.visit, ctx.low
        own = []
        for gathered, new_1KLD in zip(ctx.memory.gradients, gradients, strict=True):
            gathered[:, :, low : visit.depth] += new_1KLD[:, :, : visit.depth - low]
            mine_1KSD = new_1KLD[:, :, visit.depth - low :]
            if visit.children:
                given_1KSD = gathered[:, :, visit.depth : visit.depth + len(visit)]
                mine_1KSD = (given_1KSD + mine_1KSD).to(new_1KLD.dtype)
                given_1KSD.zero_()
            own.append(mine_1KSD)
        return *own, None, None, None
