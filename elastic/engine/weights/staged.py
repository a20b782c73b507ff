"""A new policy version: a folder of weights, checked whole, then copied into the model in place.

`stage` may run beside the engine: it reads and checks, and touches nothing that the engine uses.
`StagedWeights.copy_into` runs between two steps. Parameters stay the tensors they are, so that
whoever holds one sees the new values.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping

from gyre.elastic.engine.models.check import is_finite
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.models.quiet import quietly
from gyre.elastic.engine.weights import blob
from gyre.elastic.engine.weights.checkpoint import CONFIG, Checkpoint, bad, named, read_checkpoint
from gyre.proxy.errors import RequestError

SAME_OUTPUT = frozenset(
    {
        *("_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "return_dict", "initializer_range"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef"),
        *("id2label", "label2id", "problem_type", "chunk_size_feed_forward"),
    }
)
"""Keys of a config that say nothing about what the weights compute."""

_TRANSFORMERS = threading.Lock()
"""`from_pretrained` changes settings of the process while it builds a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWeights:
    """Checked weights, on the CPU, in the types of the model they were checked for."""

    folder: Path
    digest: str
    tensors: Mapping[str, Tensor] = field(repr=False)
    """Every weight once, by the first of its names in the model."""

    @property
    def n_bytes(self) -> int:
        return sum(tensor.numel() * tensor.itemsize for tensor in self.tensors.values())

    def copy_into(self, loaded: LoadedModel) -> None:
        """All or nothing: a model that they were not checked for raises ValueError before the first copy."""
        weights = _Weights(loaded.model).live
        if _forms(weights) != _forms(self.tensors):
            raise ValueError(f"the weights of {self.folder} were checked for another model")
        with torch.no_grad():
            for name, live in weights.items():
                live.copy_(self.tensors[name])


class _Weights:
    """What of a model is weights: parameters and saved buffers, each once, and their other names."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.live: dict[str, Tensor] = {}
        self.aliases: dict[str, str] = {}
        """Another name of a tied weight -> its first name."""
        names: dict[int, str] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            first = names.setdefault(id(tensor), name)
            if first == name:
                self.live[name] = tensor
            else:
                self.aliases[name] = first


def stage(folder: Path, loaded: LoadedModel) -> StagedWeights:
    """Read and check the folder for this model.

    RequestError 400 for a folder that is not whole, 409 for one that is of another model or changes
    while it is read; each names the file and the tensor.
    """
    checkpoint = read_checkpoint(folder)
    if checkpoint.config is not None:
        _require_same_config(checkpoint.folder / CONFIG, checkpoint.config, loaded.model)
    weights = _Weights(loaded.model)
    found = _matched(checkpoint, weights, loaded.model)
    staged = {name: _fitted(name, tensor, weights, checkpoint) for name, tensor in found.items()}
    tensors = _merged(staged, weights, checkpoint)
    digest = _digest(tensors, loaded.model)
    return StagedWeights(folder=checkpoint.folder, digest=digest, tensors=tensors)


def digest_of(model: PreTrainedModel) -> str:
    """xxh3_128 of the policy, in hex: of all weights, and of what of the config decides what they compute.

    Equal for equal ones, whatever file they came from.
    """
    return _digest(_Weights(model).live, model)


def _digest(tensors: Mapping[str, Tensor], model: PreTrainedModel) -> str:
    digest = xxhash.xxh3_128()
    config = {key: value for key, value in model.config.to_dict().items() if _decides(key)}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(blob.raw(tensor.detach().cpu().contiguous()))
    return digest.hexdigest()


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _matched(checkpoint: Checkpoint, weights: _Weights, model: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors under the model's names; a tied weight may come under several."""
    covered = {weights.aliases.get(name, name) for name in checkpoint.tensors}
    # Some families store a weight under its own name and yet in another form.
    if covered == weights.live.keys() and not get_model_conversion_mapping(model, add_legacy=False):
        return checkpoint.tensors
    return _converted(checkpoint, model)


def _converted(checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, Tensor]:
    """Files of other names than the model's, or other stacking: transformers knows how they are loaded.

    It loads them into a second model. That one is built in the process's default type, so that no
    setting changes under the engine's thread, and holds the tensors read, not a file.
    """
    try:
        with _TRANSFORMERS, quietly():
            loaded: Any = type(model).from_pretrained(
                None,
                config=copy.deepcopy(model.config),
                state_dict=dict(checkpoint.tensors),
                dtype=torch.get_default_dtype(),
                attn_implementation="eager",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        what = "a tensor is missing, or has another shape or name"
        name = type(model).__name__
        raise refused(f"{checkpoint.folder} cannot be made a {name}: {what} ({error})") from None
    other, report = loaded
    _require_loaded(checkpoint, report, type(model).__name__)
    return _Weights(other).live


def _require_loaded(checkpoint: Checkpoint, report: Mapping[str, Any], model: str) -> None:
    folder = checkpoint.folder
    if missing := sorted(report["missing_keys"]):
        raise refused(f"{folder} lacks {named(missing)}, which {model} has")
    if unexpected := sorted(report["unexpected_keys"]):
        raise refused(f"{folder} has {named(unexpected)}, which {model} has not")
    for name, theirs, ours in sorted(report["mismatched_keys"]):
        raise refused(f"{folder}: {name} has the shape {list(theirs)}, in the model it is {list(ours)}")


def _fitted(name: str, tensor: Tensor, weights: _Weights, checkpoint: Checkpoint) -> Tensor:
    """In the form of the model's weight of that name, and finite."""
    live = weights.live[weights.aliases.get(name, name)]
    where = checkpoint.where(name)
    if tensor.shape != live.shape:
        raise refused(f"{where} has the shape {list(tensor.shape)}, in the model it is {list(live.shape)}")
    if tensor.dtype != live.dtype and not (tensor.is_floating_point() and live.is_floating_point()):
        raise refused(f"{where} is {tensor.dtype}, in the model it is {live.dtype}")
    fitted = tensor.detach().to(live.dtype).contiguous()
    if not is_finite(fitted):
        raise bad(f"{where} has values that are not finite")
    return fitted


def _merged(staged: Mapping[str, Tensor], weights: _Weights, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """One tensor for each weight: a tied one that came under two names must be the same twice."""
    merged: dict[str, Tensor] = {}
    for name, tensor in staged.items():
        first = weights.aliases.get(name, name)
        if not torch.equal(merged.setdefault(first, tensor), tensor):
            other = _other_name(name, first, staged, weights.aliases)
            raise refused(f"{checkpoint.folder}: {name} differs from {other}, but the model ties them")
    return merged


def _other_name(name: str, first: str, staged: Iterable[str], aliases: Mapping[str, str]) -> str:
    return next(other for other in staged if other != name and aliases.get(other, other) == first)


def _decides(key: str) -> bool:
    """Whether a key of a config has a part in what the weights compute."""
    return key not in SAME_OUTPUT and "dropout" not in key


def _require_same_config(path: Path, config: dict[str, Any], model: PreTrainedModel) -> None:
    """Nothing in the folder's config may speak of another model than the one that is served."""
    ours = model.config.to_dict()
    kind, classes = config.get("model_type", ours["model_type"]), config.get("architectures")
    if kind != ours["model_type"]:
        raise refused(f"{path} is of a {kind} model, this engine serves {ours['model_type']}")
    if classes and type(model).__name__ not in classes:
        raise refused(f"{path} is of {', '.join(classes)}, this engine serves {type(model).__name__}")
    try:
        theirs = type(model.config).from_dict(config).to_dict()
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise bad(f"{path} is not a config of {kind}: {error}") from None
    for key in sorted(theirs.keys() | ours.keys()):
        if _decides(key) and theirs.get(key) != ours.get(key):
            raise refused(f"{path} says {key} = {theirs.get(key)}, this engine's model has {ours.get(key)}")


def refused(message: str) -> RequestError:
    return RequestError(message, 409, "weights_refused")
