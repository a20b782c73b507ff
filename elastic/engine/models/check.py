"""What the engine refuses to serve, because its answers would not be the model's.

First by name, so that the reason can be told; then by numbers: whatever the names say, the engine's
packed forward pass has to give the logits of the model's own.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from gyre.proxy.errors import EngineError

ELSEWHERE = "serve it with vLLM, whose ids gyre's proxy records as well, or train it offline"
_LAYERS = {"full_attention", "sliding_attention"}
_REASONS = {
    "linear_attention": "recurrent layers, whose state cannot be cut, shared or moved token by token",
    "conv": "convolution layers, whose state cannot be cut, shared or moved token by token",
    "chunked_attention": "chunked attention",
    "indexed_attention": "sparse attention",
}


def check_config(config: PreTrainedConfig) -> None:
    """Refuse by what the configuration says; no weights are needed.

    Raises:
        EngineError: with the reason and where the model can be served instead.
    """
    text = config.get_text_config()
    values = text.to_dict()
    if config.is_encoder_decoder:
        raise _refused(config, "an encoder beside its decoder")
    for kind in values.get("layer_types") or ():
        if kind not in _LAYERS:
            raise _refused(config, _REASONS.get(kind, f"layers of the kind `{kind}`"))
    if values.get("attn_logit_softcapping"):
        raise _refused(config, "capped attention scores (attn_logit_softcapping)")
    if values.get("attn_temperature_tuning"):
        raise _refused(config, "queries scaled by their place in the batch (attn_temperature_tuning)")
    if values.get("alibi"):
        raise _refused(config, "attention biased by distance (ALiBi)")
    if values.get("quantization_config"):
        raise _refused(config, "quantized weights, which cannot be exchanged while it runs")


def check_structure(model: PreTrainedModel) -> None:
    """Refuse by what the network is made of; raises EngineError as `check_config`."""
    if model._is_stateful:
        raise _refused(model.config, _REASONS["linear_attention"])
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.named_parameters()):
        raise _refused(model.config, "attention sinks")
    if not model._supports_attention_backend:
        raise _refused(model.config, "attention code that takes no other attention function")


def vocab_size(model: PreTrainedModel) -> int:
    """How many ids the model has rows for; its tokenizer may know fewer."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, torch.nn.Embedding):
        raise _refused(model.config, "an input that is no table of embeddings")
    return embedding.num_embeddings


def is_finite(tensor: torch.Tensor) -> bool:
    """In one pass without memory: NaN goes through minimum and maximum."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    lowest, highest = torch.aminmax(tensor)
    return bool(lowest.isfinite() & highest.isfinite())


def _refused(config: PreTrainedConfig, what: str) -> EngineError:
    return EngineError(f"gyre engine cannot serve `{config.model_type}` models with {what}", ELSEWHERE)
