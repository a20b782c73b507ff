"""A Hugging Face folder: its configuration, weights and tokenizer, or the reason why it is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from gyre.elastic.engine.models.check import ELSEWHERE, check_config
from gyre.elastic.engine.models.quiet import quietly
from gyre.proxy.errors import EngineError

CONFIG = "config.json"
_UPDATE = re.compile(r"update-\d+")
_STRICT = {"local_files_only": True, "trust_remote_code": False}
_FAULTS = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What transformers raises about files that it cannot use."""


def require(path: Path) -> None:
    """EngineError unless `path` is a folder with a configuration in it."""
    if path.suffix == ".gguf":
        raise EngineError(f"transformers does not run `{path}`", "use `--runtime llamacpp`")
    if not path.exists():
        hint = "use `smollm2`, `tiny` or the path of a Hugging Face folder"
        if not path.is_absolute() and len(path.parts) == 2 and not path.parent.exists():
            hint += f"; of a model on the hub `hf download {path} --local-dir {path.name}` makes one"
        raise EngineError(f"no such model: `{path}`", hint)
    if not path.is_dir():
        raise EngineError(f"`{path}` is no folder", "give the Hugging Face folder that the file lies in")
    adapter = (path / "adapter_config.json").is_file()
    if not (path / CONFIG).is_file():
        hint = "merge the adapter into its model first" if adapter else _nearby(path)
        raise EngineError(f"`{path}` has no {CONFIG}", hint)
    if adapter:
        raise EngineError(
            f"`{path}` has an adapter (adapter_config.json), which would be ignored",
            "merge it into the model, or take it out of the folder to serve the model without it",
        )


def _nearby(path: Path) -> str:
    """A run's folder stands for its newest model everywhere but here."""
    for inner in ("model", "latest/model"):
        if (path / inner / CONFIG).is_file():
            return f"did you mean `{path / inner}`?"
    return "give a Hugging Face folder"


def served_name(path: Path) -> str:
    """The folder's own; of a checkpoint of `gyre train`, where all are called `model`, the run and update."""
    place = path.resolve()
    checkpoint = place.parent
    if place.name == "model" and _UPDATE.fullmatch(checkpoint.name):
        return f"{checkpoint.parent.parent.name}/{checkpoint.name}"
    return place.name


def load(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The network on the CPU and its tokenizer. No code of the folder is ever run.

    The weights may be a map of the file: clone them before the file can change.
    """
    with quietly():
        config = read_config(path)
        check_config(config)
        require_causal_lm(path, config)
        tokenizer = _read_tokenizer(path)
        return read_weights(path, config, dtype), tokenizer


def read_config(path: Path) -> PreTrainedConfig:
    """Of any kind of model that transformers knows; else EngineError."""
    file = path / CONFIG
    raw = _read_json(file)
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in raw:
            raise EngineError(f"`{path}` needs code of its own to run, which gyre never executes", ELSEWHERE)
        raise EngineError(f"transformers {transformers.__version__} knows no model type `{kind}` ({file})")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, **_STRICT)
    except _FAULTS as error:
        raise EngineError(f"`{file}` is not usable: {_line(error)}") from error
    return config


def require_causal_lm(path: Path, config: PreTrainedConfig) -> None:
    """Weights of a classifier would load into a language model too, with a random head."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise EngineError(f"`{path}` is no causal language model (model type `{config.model_type}`)")
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    names = {kind.__name__ for kind in (causal if isinstance(causal, tuple) else (causal,))}
    if config.architectures and names.isdisjoint(config.architectures):
        raise EngineError(f"`{path}` is no causal language model but `{config.architectures[0]}`")


def _read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise EngineError(
            f"`{path}` has no tokenizer.json: the engine uses fast tokenizers only",
            "transformers writes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:
        if type(error) is not Exception:  # tokenizers raises the bare class about what it cannot read
            raise
        raise EngineError(f"`{file}` is no tokenizer: {_line(error)}") from error
    _require_json(path / "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **_STRICT)
    except _FAULTS as error:
        raise EngineError(f"the tokenizer of `{path}` is not usable: {_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EngineError(f"`{path}` has no fast tokenizer but a `{type(tokenizer).__name__}`")
    return tokenizer


def read_weights(path: Path, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """On the CPU, maybe as a map of the file; EngineError where the files do not hold this model."""
    _require_json(path / "generation_config.json")  # transformers would go on without it
    auto: Any = AutoModelForCausalLM
    how = {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        model, report = auto.from_pretrained(path, config=config, dtype=dtype, **how, **_STRICT)
    except _FAULTS as error:
        raise EngineError(f"the weights of `{path}` are not usable: {_line(error)}") from error
    _require_all(path, "lack", report["missing_keys"])
    _require_all(path, "have, but the model does not:", report["unexpected_keys"])
    _require_all(path, "have another shape for", {name for name, *_ in report["mismatched_keys"]})
    loaded: PreTrainedModel = model
    return loaded


def _require_all(path: Path, what: str, names: Iterable[str]) -> None:
    """transformers fills gaps with random numbers and leaves out what it does not know."""
    if found := sorted(names):
        shown = ", ".join(f"`{name}`" for name in found[:3]) + (" and others" if found[3:] else "")
        raise EngineError(
            f"the weights of `{path}` {what} {shown}", "its config.json and its weights belong to two models"
        )


def _require_json(file: Path) -> None:
    """Of a file that need not be there."""
    if file.is_file():
        _read_json(file)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot read `{file}`: {_line(error)}") from error
    if not isinstance(document, dict):
        raise EngineError(f"`{file}` is no JSON object")
    return document


def _line(error: Exception) -> str:
    """The beginning of a message that may have twenty lines, or none."""
    if isinstance(error, KeyError):
        return f"transformers knows no {error}"
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {rest[0].strip()}" if rest and first.endswith(":") else first
