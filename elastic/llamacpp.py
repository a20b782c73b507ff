"""A small real engine: llama.cpp in this process, through the package `xllamacpp`.

It speaks the OpenAI wires over HTTP and needs neither a GPU nor torch. Its sampler starts neutral
(plain softmax at temperature 1), because llama.cpp's own defaults truncate the distribution while
the log-probabilities it reports do not: such tokens could not be trained on honestly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.elastic.endpoint import Engine, require_free, require_loopback
from gyre.elastic.packaged import SMOLLM2, require_packages, smollm2_file
from gyre.proxy.errors import EngineError

QUIET, CHATTY = 0, 3
"""llama.cpp's verbosity: errors only, or what a server usually prints."""


@dataclass(kw_only=True, slots=True, frozen=True)
class LlamaCppSettings:
    """What `gyre engine` is asked for when the model runs on llama.cpp."""

    model: str = SMOLLM2
    """`smollm2`, or the path of a `.gguf` file."""
    host: str = "127.0.0.1"
    """A loopback address: the engine has no authentication."""
    port: int = 0
    """0 takes a free one."""
    ctx: int = 8192
    """Tokens of context that each slot has."""
    slots: int = 2
    """Requests that are served at the same time."""
    threads: int = 2
    verbose: bool = False


@contextmanager
def serve(settings: LlamaCppSettings) -> Iterator[Engine]:
    """Run the engine until the block is left; it answers requests when the block is entered."""
    require_loopback(settings.host)
    require_free(settings.host, settings.port)
    name, path = find_model(settings.model)
    server = _start(settings, name, path)
    try:
        yield Engine(url=server.listening_address, model=name)
    finally:
        del server  # closes the socket and ends the threads


def find_model(model: str) -> tuple[str, Path]:
    """The name to serve a model under, and its file."""
    if model == SMOLLM2:
        return SMOLLM2, smollm2_file()
    path = Path(model).expanduser()
    if path.suffix != ".gguf":
        raise EngineError(f"unknown model `{model}`", f"use `{SMOLLM2}` or the path of a `.gguf` file")
    if not path.is_file():
        raise EngineError(f"no such file: `{path}`")
    return path.stem, path


def _start(settings: LlamaCppSettings, name: str, path: Path) -> Any:
    require_packages("demo", "xllamacpp")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {name}
    params.hostnames, params.port = [settings.host], settings.port
    params.n_parallel = settings.slots
    params.n_ctx = settings.ctx * settings.slots  # llama.cpp divides it between the slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.verbosity = CHATTY if settings.verbose else QUIET
    _neutralise(params.sampling, xllamacpp.common_params_sampling_config)
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        hint = "" if settings.verbose else "`--verbose` shows what llama.cpp says"
        raise EngineError(f"llama.cpp cannot serve `{path}`: {error}", hint) from error


def _neutralise(sampling: Any, fields: Any) -> None:
    """Sample from the distribution whose log-probabilities are reported."""
    sampling.temp = 1.0
    sampling.top_k = 0
    sampling.top_p = sampling.typ_p = 1.0
    sampling.min_p = 0.0
    sampling.penalty_last_n = 0
    sampling.penalty_repeat = 1.0
    sampling.penalty_freq = sampling.penalty_present = 0.0
    sampling.user_sampling_config = sum(fields.__members__.values())  # or the file's metadata would win
