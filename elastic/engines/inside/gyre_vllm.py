"""For vLLM's `--worker-extension-cls gyre_vllm.Reload`: what its own `reload_weights` leaves out (0.32).

On a CPU an output layer that shares its weights with the embedding computes with a packed copy of them. After
`reload_weights` that is still a copy of the old ones, and nothing that vLLM tells of its weights shows it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Reload:
    """Mixed into vLLM's worker, whose attributes these methods use."""

    def gyre_can_reload(self) -> str:
        return "yes"

    def gyre_reload(self, weights_path: str) -> None:
        worker: Any = self
        worker.reload_weights(weights_path=weights_path)
        platform: Any = import_module("vllm.platforms").current_platform
        if platform.is_cpu():
            _pack_anew(worker.model_runner.get_model())


def _pack_anew(model: Any) -> None:
    layers: Any = import_module("vllm.model_executor.layers.vocab_parallel_embedding")
    for layer in model.modules():
        if isinstance(layer, layers.ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)
