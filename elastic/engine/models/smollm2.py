"""SmolLM2-135M-Instruct for transformers, rebuilt once from llama.cpp's file and kept in a cache folder.

The weights are kept in fp32 (538 MB), because the file's 4-bit values times their scales do not fit
into bf16. The tokenizer gets back what the conversion loses: digits stand alone, as in llama.cpp.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from gyre.elastic.engine.models.quiet import quietly
from gyre.elastic.engine.text.chatml import chatml
from gyre.elastic.packaged import require_packages, smollm2_file
from gyre.proxy.errors import EngineError

_RECIPE = b"1"
"""Another number makes everyone's cached folder anew."""
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the model's own template says where there is no system message."""


def rebuilt(progress: Callable[[str], None]) -> Path:
    """The Hugging Face folder, made now if it is not there; two processes at once make one.

    Raises:
        EngineError: a package is missing, or the cache folder cannot be written.
    """
    require_packages("train", "gguf")
    source = smollm2_file()
    folder = _cache() / f"smollm2-{xxhash.xxh3_64_hexdigest(_RECIPE + source.read_bytes())}"
    if folder.is_dir():
        return folder
    try:
        with _lock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                progress(f"converting SmolLM2 for transformers, once, into {folder} (540 MB)")
                _build(source, folder)
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"cannot write `{folder}`: {error}", "XDG_CACHE_HOME names another place"
        ) from error
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gyre"


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """One process at a time; the lock of a killed one is gone with it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _build(source: Path, folder: Path) -> None:
    """The folder is there whole or not at all."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    # transformers draws this bar whatever its settings say.
    with quietly(), redirect_stderr(StringIO()):
        _network(source).save_pretrained(partial)
        _tokenizer(source).save_pretrained(partial)
    partial.rename(folder)


def _network(source: Path) -> LlamaForCausalLM:
    values = load_gguf_checkpoint(str(source))["config"]
    config = LlamaConfig(**values, dtype="float32")
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(eos_token_id=[2, 0], bos_token_id=1, pad_token_id=2)
    return model


def _tokenizer(source: Path) -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, model_max_length=8192)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.chat_template = chatml(_SYSTEM)
    return tokenizer
