"""Attention over a ragged batch: one row of all new tokens, each sequence with keys and values of its own.

The function is registered through transformers' public attention interface, so that no model code is
touched: unknown keyword arguments of `model(...)` reach it, and for a name without an entry among the
mask functions no dense mask is built.

    model.set_attn_implementation(NAME)
    model(input_ids=[1, T], position_ids=[1, T], use_cache=False, ragged=Ragged(...))

Shapes: T tokens, H query heads, K key heads, G = H / K, D head_dim, L keys of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from gyre.elastic.engine.compute.singles import Chunk, Gathered, Singles, first_seen

NAME = "gyre_ragged"
ROWS_BYTES = 32 << 20
"""Of a mask, up to which a chunk's queries are computed at once."""


class Ragged:
    """What the rows of a forward pass are: first `single` tokens of one sequence each, then longer chunks."""

    def __init__(
        self, single: Sequence[Chunk], longer: Sequence[Chunk], gathered: Gathered | None = None
    ) -> None:
        self.single = Singles(single) if gathered is None else gathered
        self.longer = longer


def ragged_attention(
    module: Any,
    query_1HTD: torch.Tensor,
    key_1KTD: torch.Tensor,
    value_1KTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    ragged: Ragged,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the new keys and values, attend; returns (1, T, H, D)."""
    layer = module.layer_idx
    parts = []
    row = len(ragged.single)
    if row:
        new_2KSD = torch.cat((key_1KTD[:, :, :row], value_1KTD[:, :, :row]))
        parts.append(
            _single(ragged.single, layer, query_1HTD[0, :, :row] * scaling, new_2KSD, sliding_window)
        )
    for chunk in ragged.longer:
        end = row + chunk.count
        kv_2KLD = chunk.kv.layers[layer]
        kv_2KLD[0, :, chunk.position : chunk.position + chunk.count] = key_1KTD[0, :, row:end]
        kv_2KLD[1, :, chunk.position : chunk.position + chunk.count] = value_1KTD[0, :, row:end]
        parts.append(_chunk(chunk, kv_2KLD, query_1HTD[:, :, row:end], scaling, sliding_window))
        row = end
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _single(
    singles: Singles | Gathered,
    layer: int,
    query_HSD: torch.Tensor,
    new_2KSD: torch.Tensor,
    window: int | None,
) -> torch.Tensor:
    """(S, H, D) for one query per sequence."""
    heads, rows, dim = query_HSD.shape
    query_SKGD = query_HSD.view(new_2KSD.shape[1], -1, rows, dim).permute(2, 0, 1, 3).contiguous()
    return singles.attend(layer, query_SKGD, new_2KSD, window).view(rows, heads, dim)


def _chunk(
    chunk: Chunk, kv_2KLD: torch.Tensor, query_1HTD: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """(T, H, D) for successive tokens of one sequence."""
    rows = max(16, ROWS_BYTES // (query_1HTD.itemsize * (chunk.position + chunk.count)))
    starts = range(0, chunk.count, rows)
    outs = [
        _rows(chunk.position + start, part_1HTD, kv_2KLD, scaling, window)
        for start, part_1HTD in zip(starts, torch.split(query_1HTD, rows, 2), strict=True)
    ]
    return (outs[0] if len(outs) == 1 else torch.cat(outs, 2))[0].transpose(0, 1)


def _rows(
    position: int, query_1HTD: torch.Tensor, kv_2KLD: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """(1, H, T, D) for queries from `position` on."""
    length = position + query_1HTD.shape[2]
    first = first_seen(position + 1, window)
    keys, values = kv_2KLD.narrow(2, first, length - first).unsqueeze(1)
    plain = position == 0 and (window is None or length <= window)
    # `is_causal` aligns queries and keys at the top left: right only where both start at 0.
    mask = None if plain else causal_mask(position, query_1HTD.shape[2], first, window, keys.device)
    return F.scaled_dot_product_attention(
        query_1HTD, keys, values, attn_mask=mask, is_causal=plain, scale=scaling, enable_gqa=True
    )


def causal_mask(
    position: int, count: int, first: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """(count, position + count - first): which keys, of those from `first` on, each query may see."""
    queries = torch.arange(position, position + count, device=device)[:, None]
    keys = torch.arange(first, position + count, device=device)[None]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


AttentionInterface.register(NAME, ragged_attention)
