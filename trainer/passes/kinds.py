"""What the layers of a model are, as far as it decides which passes are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that a mask says everything about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKinds:
    recurrent: bool
    """Layers with a state that runs over the tokens, in the order in which they are given: a mask does not
    reach them. Gated delta rules, state spaces, convolutions."""
    other: tuple[str, ...]
    """Names of what is neither, as they may be shown: attention with sinks or caps, biases by distance."""


def layer_kinds(model: PreTrainedModel) -> LayerKinds:
    """By configuration and modules; what no name tells is left to `probe`."""
    types = _types(model)
    return LayerKinds(
        recurrent=bool(model._is_stateful) or _recurrent(types),
        other=tuple(sorted(_other(model, types))),
    )


_RECURRENT = frozenset({"linear_attention", "conv", "mamba", "mamba2", "recurrent", "hybrid"})


def _recurrent(types: set[str]) -> bool:
    return not types.isdisjoint(_RECURRENT)


def _types(model: PreTrainedModel) -> set[str]:
    values = model.config.get_text_config().to_dict()
    return set(values.get("layer_types") or values.get("layers_block_type") or ())


def _other(model: PreTrainedModel, types: set[str]) -> set[str]:
    values: dict[str, Any] = model.config.get_text_config().to_dict()
    found = {f"layers of the kind `{kind}`" for kind in types - ATTENTION - _RECURRENT}
    if values.get("attn_logit_softcapping"):
        found.add("capped attention scores (attn_logit_softcapping)")
    if values.get("attn_temperature_tuning"):
        found.add("queries scaled by their place in the batch (attn_temperature_tuning)")
    if values.get("alibi"):
        found.add("attention biased by distance (ALiBi)")
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.named_parameters()):
        found.add("attention sinks")
    return found
