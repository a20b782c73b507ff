"""Attention over a ragged batch: one row of all new tokens, each sequence with keys and values of its own.

The function is registered through transformers' public attention interface, so that no model code is
touched: unknown keyword arguments of `model(...)` reach it, and for a name without an entry among the
mask functions no dense mask is built.

    model.set_attn_implementation(NAME)
    model(input_ids=[1, T], position_ids=[1, T], use_cache=False, ragged=Ragged(...))

Shapes: T tokens, H query heads, K key heads, G = H / K, D head_dim, L keys of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from gyre.elastic.engine.kv import SequenceKV

NAME = "gyre_ragged"


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` new tokens of one sequence, at `position` and after."""

    kv: SequenceKV
    """With room for them; written by the forward pass, advanced by who called it."""
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class Ragged:
    """What the rows of a forward pass are: first `single` tokens of one sequence each, then longer chunks."""

    single: list[Chunk]
    longer: list[Chunk]


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
        new_2KTD = torch.cat((key_1KTD[:, :, :row], value_1KTD[:, :, :row]))
        one = _one_by_one if query_1HTD.dtype == torch.float32 else _one_by_sdpa
        parts.append(one(ragged.single, layer, query_1HTD[0, :, :row], new_2KTD, scaling, sliding_window))
    for chunk in ragged.longer:
        end = row + chunk.count
        kv_2KLD = chunk.kv.layers[layer]
        kv_2KLD[0, :, chunk.position : chunk.position + chunk.count] = key_1KTD[0, :, row:end]
        kv_2KLD[1, :, chunk.position : chunk.position + chunk.count] = value_1KTD[0, :, row:end]
        parts.append(_chunk(chunk, kv_2KLD, query_1HTD[:, :, row:end], scaling, sliding_window))
        row = end
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _first(length: int, window: int | None) -> int:
    """The first key that the last of `length` positions sees: a window counts the token itself."""
    return 0 if window is None else max(0, length - window)


def _one_by_one(
    chunks: list[Chunk],
    layer: int,
    query_HTD: torch.Tensor,
    new_2KTD: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """(T, H, D) for one query per sequence.

    Two products and a softmax: for a single query in fp32 that is half the time of torch's fused
    kernel, whose call costs more than its work.
    """
    heads, rows, dim = query_HTD.shape
    query_TKGD = (query_HTD * scaling).view(new_2KTD.shape[1], -1, rows, dim).permute(2, 0, 1, 3).contiguous()
    outs = []
    for chunk, query_KGD, new_2KD in zip(chunks, query_TKGD.unbind(0), new_2KTD.unbind(2), strict=True):
        length = chunk.position + 1
        kv_2KLD = chunk.kv.layers[layer]
        kv_2KLD.select(2, chunk.position).copy_(new_2KD)
        first = _first(length, window)
        keys_KLD, values_KLD = kv_2KLD.narrow(2, first, length - first).unbind(0)
        weights_KGL = torch.softmax(torch.bmm(query_KGD, keys_KLD.transpose(1, 2)), -1)
        outs.append(torch.bmm(weights_KGL, values_KLD))
    return torch.stack(outs).view(rows, heads, dim)


def _one_by_sdpa(
    chunks: list[Chunk],
    layer: int,
    query_HTD: torch.Tensor,
    new_2KTD: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """(T, H, D), as `_one_by_one`; in half precision the fused kernel keeps its sums in fp32."""
    heads, rows, dim = query_HTD.shape
    query_TKGD = query_HTD.reshape(new_2KTD.shape[1], -1, rows, dim).permute(2, 0, 1, 3)
    outs = []
    for chunk, query_KGD, new_2KD in zip(chunks, query_TKGD.unbind(0), new_2KTD.unbind(2), strict=True):
        length = chunk.position + 1
        kv_2KLD = chunk.kv.layers[layer]
        kv_2KLD.select(2, chunk.position).copy_(new_2KD)
        first = _first(length, window)
        kv_2KLD = kv_2KLD.narrow(2, first, length - first)
        # The heads of a group stand as queries of one key head: no mask, so each sees all keys.
        outs.append(
            F.scaled_dot_product_attention(query_KGD[None], kv_2KLD[0:1], kv_2KLD[1:2], scale=scaling)
        )
    return torch.cat(outs).reshape(rows, heads, dim)


def _chunk(
    chunk: Chunk, kv_2KLD: torch.Tensor, query_1HTD: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """(T, H, D) for successive tokens of one sequence."""
    length = chunk.position + chunk.count
    first = _first(chunk.position + 1, window)
    keys, values = kv_2KLD.narrow(2, first, length - first).unsqueeze(1)
    plain = chunk.position == 0 and (window is None or length <= window)
    # `is_causal` aligns queries and keys at the top left: right only where both start at 0.
    mask = None if plain else causal_mask(chunk.position, chunk.count, first, window, keys.device)
    out_1HTD = F.scaled_dot_product_attention(
        query_1HTD, keys, values, attn_mask=mask, is_causal=plain, scale=scaling, enable_gqa=True
    )
    return out_1HTD[0].transpose(0, 1)


def causal_mask(
    position: int, count: int, first: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """(count, position + count - first): which keys, of those from `first` on, each query may see."""
    queries = torch.arange(position, position + count, device=device)[:, None]
    keys = torch.arange(first, position + count, device=device)[None]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


AttentionInterface.register(NAME, ragged_attention)
