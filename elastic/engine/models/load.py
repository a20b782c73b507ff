"""Loading a model by name or folder, and refusing what the engine cannot serve exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from gyre.elastic.engine.models import folder, smollm2
from gyre.elastic.engine.models.check import check_structure, is_finite, vocab_size
from gyre.elastic.engine.models.compare import check_logits
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.models.template import own_template, read_template, stop_ids
from gyre.elastic.engine.models.tiny import TINY, make_tiny
from gyre.elastic.engine.settings import Device, Dtype
from gyre.elastic.packaged import SMOLLM2
from gyre.proxy.errors import EngineError

DTYPES = {Dtype.FP32: torch.float32, Dtype.BF16: torch.bfloat16}


def load_model(
    model: str,
    *,
    device: Device = Device.AUTO,
    dtype: Dtype = Dtype.FP32,
    chat_template: Path | None = None,
    seed: int = 0,
    ctx: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> LoadedModel:
    """The model in memory of its own, checked against its own plain forward pass.

    `progress` is told of work that takes more than a moment. Raises EngineError, which says what is
    wrong with the model, the device or the template, and what to do about it.
    """
    place = _device(device)
    name, network, tokenizer = _find(model, DTYPES[dtype], seed, progress)
    template = read_template(chat_template, tokenizer) if chat_template else own_template(name, tokenizer)
    check_structure(network)
    positions = max_positions(name, network.config)
    if ctx is not None and ctx > positions:
        raise EngineError(f"`{name}` has {positions} positions, fewer than `--ctx {ctx}`")
    _settle(network, place)
    _require_finite(name, network)
    check_logits(network)
    ids = vocab_size(network)
    return LoadedModel(
        name=name,
        model=network,
        tokenizer=tokenizer,
        chat_template=template,
        stop_ids=stop_ids(name, network.generation_config, tokenizer, template, ids),
        vocab_size=ids,
        max_positions=positions,
    )


def _find(
    model: str, dtype: torch.dtype, seed: int, progress: Callable[[str], None]
) -> tuple[str, PreTrainedModel, PreTrainedTokenizerFast]:
    """The name to serve it under, the network (its memory may be a map of a file) and its tokenizer."""
    if model == TINY:
        tiny = make_tiny(seed)
        for parameter in tiny.model.parameters():  # not `to`: it would round the rotary frequencies too
            parameter.data = parameter.data.to(dtype)
        return TINY, tiny.model, tiny.tokenizer
    if model == SMOLLM2:
        return SMOLLM2, *folder.load(smollm2.rebuilt(progress), dtype)
    path = Path(model).expanduser()
    folder.require(path)
    return folder.served_name(path), *folder.load(path, dtype)


def _device(device: Device) -> torch.device:
    available = {
        Device.CPU: True,
        Device.CUDA: torch.cuda.is_available(),
        Device.MPS: torch.backends.mps.is_available(),
    }
    if device == Device.AUTO:
        device = Device.CUDA if available[Device.CUDA] else Device.CPU
    if not available[device]:
        raise EngineError(f"torch sees no `{device}` device here", "`--device cpu` runs anywhere")
    return torch.device(device)


def _settle(network: PreTrainedModel, device: torch.device) -> None:
    """Weights in memory of their own: whoever overwrites the file must not change a running model."""
    network.eval().requires_grad_(False)
    try:
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = tensor.data.clone()
        torch.nn.Module.to(network, device)
    except RuntimeError as error:  # out of memory, in torch's words
        raise EngineError(f"the weights do not fit into the memory of `{device}`: {error}") from error


def _require_finite(name: str, network: PreTrainedModel) -> None:
    for key, parameter in network.named_parameters():
        if not is_finite(parameter):
            raise EngineError(f"the weights of `{name}` are damaged: `{key}` has values that are not finite")


def max_positions(name: str, config: PreTrainedConfig) -> int:
    """How many tokens the model serves; EngineError when its configuration does not say."""
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)  # some families call it otherwise, and map it
    if positions is None:
        raise EngineError(f"the config.json of `{name}` has no `max_position_embeddings`")
    for rope in _ropes(text.to_dict().get("rope_parameters") or {}):
        if rope.get("rope_type") in ("dynamic", "longrope"):
            # Beyond the original length these rotate every position anew, by the longest of the batch.
            positions = min(positions, rope.get("original_max_position_embeddings", positions))
    if type(positions) is not int or positions < 1:
        raise EngineError(f"the config.json of `{name}` says that the model has {positions!r} positions")
    return positions


def _ropes(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """One for all layers, or one for each kind of layer."""
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters, *nested]
