"""State of recurrent layers along a path: every branch starts from the same, and hands gradients back.

transformers' layers read and write their state through a cache. Its own writes in place, which no backward
pass can follow, and takes a way for single tokens that does so too. Here states are assigned, and a layer is
told that its past is recorded, which makes it take the one way for any number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from gyre.trainer.errors import RefusedError

Key = tuple[int, str, int]
"""Layer, `conv` or `recurrent`, and which of the layer's states."""
State = Mapping[Key, torch.Tensor]


class States(Cache):
    """The cache of one visit: recurrent layers start from `start`, attention layers keep nothing in it."""

    def __init__(self, config: PreTrainedConfig, start: State) -> None:
        """`start`: what the visit before left; empty at a root."""
        layers: list[Any] = [
            _Recurrent(layer.number_of_states)
            if isinstance(layer, LinearAttentionCacheLayerMixin)
            else _Elsewhere()
            for layer in DynamicCache(config=config).layers
        ]
        super().__init__(layers=layers)
        self._begun = start
        for (layer, kind, which), state in start.items():
            layers[layer].start(kind, which, state)

    def left(self) -> State:
        """All states after the visit's last token.

        RefusedError where a layer wrote over what it started from, as state spaces do for a single token:
        other branches start from there too.
        """
        if any(state._version for state in self._begun.values()):
            raise RefusedError("a recurrent layer writes over the state that other branches start from")
        return {
            (index, kind, which): state
            for index, layer in enumerate(self.layers)
            if isinstance(layer, _Recurrent)
            for kind, states in layer.kinds().items()
            for which, state in states.items()
            if state is not None
        }


def fork(left: State, *, gradients: bool) -> State:
    """What all branches after a visit start from; their backward passes add up in `.grad`."""
    return {key: state.detach().clone().requires_grad_(gradients) for key, state in left.items()}


class _Recurrent(LinearAttentionLayer):
    """A layer of gated delta rules, state spaces or short convolutions."""

    def __init__(self, number_of_states: int) -> None:
        super().__init__(number_of_states)
        self.record_past = True

    def kinds(self) -> dict[str, dict[int, torch.Tensor | None]]:
        return {"conv": self.conv_states, "recurrent": self.recurrent_states}

    def start(self, kind: str, which: int, state: torch.Tensor) -> None:
        self.kinds()[kind][which] = state
        self.has_previous_state[which] = True

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """(B, channels, inputs before this visit and in it); keeps as many as a convolution reaches over."""
        before = self.conv_states[state_idx]
        inputs = conv_states if before is None else torch.cat([before, conv_states], dim=-1)
        self.conv_states[state_idx] = inputs if conv_kernel_size is None else inputs[..., -conv_kernel_size:]
        self.has_previous_state[state_idx] = True
        return inputs

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        self.has_previous_state[state_idx] = True
        return recurrent_states


class _Elsewhere(CacheLayerMixin):
    """An attention layer, whose keys and values are kept by `path.py`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1
