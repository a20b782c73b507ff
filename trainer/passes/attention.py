"""One attention function for trees, which the passes tell what a token sees.

It is registered through transformers' public interface, so that no model code is touched: keyword arguments
that `model(...)` does not know reach it, and for a name without an entry among the mask functions no mask is
built. A mask handed to the model would be used in all of its layers alike, whatever their windows.

    with policy.attention(NAME):
        policy.hidden(ids_1N, position_ids_1N, tree=...)

Shapes: N tokens, H query heads, K key heads, D head_dim.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from gyre.trainer.errors import RefusedError

NAME = "gyre_tree"

_FOREIGN = frozenset({"softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices"})
"""What some families hand their attention: scores are capped, biased or chosen by it."""


class Attend(Protocol):
    """What a token sees, in a layer with this window."""

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
        """(1, N, H, D). `window`: most tokens that are seen, the token itself counted; None: all before."""
        ...


def tree_attention(
    module: Any,
    query_1HND: torch.Tensor,
    key_1KND: torch.Tensor,
    value_1KND: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: Attend,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it. RefusedError where the layer asks for more than a mask can give."""
    asked = [name for name in _FOREIGN if others.get(name) is not None]
    if attention_mask is not None or is_causal is False:
        asked.append("a mask of its own")
    if asked:
        raise RefusedError(f"attention of `{module.config.model_type}` models has {', '.join(sorted(asked))}")
    rows = (_rounded(tensor) for tensor in (query_1HND, key_1KND, value_1KND))
    return tree.attend(module.layer_idx, *rows, scaling=scaling, window=sliding_window), None


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Norms with fp32 weights give fp32 also where bf16 is computed in; not all attention takes both."""
    place = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(place)) if torch.is_autocast_enabled(place) else tensor


AttentionInterface.register(NAME, tree_attention)
