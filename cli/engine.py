"""`gyre engine`: a real engine on this machine, to train with, to test with, or for a first look."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gyre.cli import output
from gyre.cli.stop import Stop
from gyre.elastic.endpoint import Engine, require_loopback
from gyre.elastic.engine.settings import KEY_ENV, MIB, Device, Dtype, EngineSettings
from gyre.elastic.packaged import require_packages
from gyre.proxy.errors import EngineError

SCHEMA = 1
EXIT_S = 1.5
"""After a signal; by then clients have been told."""


class Runtime(StrEnum):
    """What runs the model."""

    TRANSFORMERS = "transformers"
    LLAMACPP = "llamacpp"


def engine(
    model: Annotated[
        str, typer.Option(help="`smollm2`, `tiny`, a Hugging Face folder, or a .gguf file.")
    ] = "smollm2",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    runtime: Annotated[
        Runtime | None,
        typer.Option(help="What runs the model.", show_default="llamacpp for .gguf, else transformers"),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(
            min=128, help="Tokens of a request and its answer.", show_default="the model's; llamacpp 8192"
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Requests computed at the same time.", show_default="16; llamacpp 2"),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads.", show_default="OMP_NUM_THREADS, or cores; llamacpp 2"),
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="Where the model computes.", show_default="auto")
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Of weights and KV: fp32 is exact.", show_default="fp32")
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(help="Jinja file with a chat template.", metavar="FILE", show_default="the model's"),
    ] = None,
    queue: Annotated[
        int | None, typer.Option(min=0, help="Requests that may wait for a slot.", show_default="256")
    ] = None,
    kv_memory: Annotated[
        int | None,
        typer.Option(min=1, help="Memory for KV, in use or kept.", metavar="MIB", show_default="2048"),
    ] = None,
    splice: Annotated[
        bool | None,
        typer.Option(
            "--splice/--no-splice", help="Reuse the ids of earlier answers in prompts.", show_default="splice"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the weights of `tiny`.", show_default="0")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name to serve the model under.", show_default="the model's")
    ] = None,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Serve a model on this machine until Ctrl-C, with a neutral sampler."""
    both = {"model": model, "host": host, "port": port, "ctx": ctx, "slots": slots, "threads": threads}
    own: dict[str, Any] = {"device": device, "dtype": dtype, "chat_template": chat_template, "queue": queue}
    own |= {"kv_memory": kv_memory, "splice": splice, "seed": seed, "name": name}
    key = os.environ.get(KEY_ENV) or None
    require_loopback(host)
    runtime = runtime or (Runtime.LLAMACPP if model.endswith(".gguf") else Runtime.TRANSFORMERS)
    if runtime == Runtime.TRANSFORMERS:
        _until_stopped(_transformers(_given(both | own | {"key": key})), json)
    else:
        _refuse(_given(own))
        if key:
            raise EngineError(f"`{KEY_ENV}` is set, and llama.cpp is not given a key", "unset it")
        _until_stopped(_llamacpp(_given(both), verbose or output.manner.verbose), json, at_once=True)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Those that the user set; the settings know the defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any]) -> None:
    for name, value in options.items():
        option = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        raise EngineError(f"`{option}` is not an option of llama.cpp", "`--runtime transformers` has it")


def _transformers(options: dict[str, Any]) -> AbstractContextManager[Engine]:
    require_packages("train", "torch", "transformers", "safetensors")
    from gyre.elastic.engine.server.app import serve

    if "kv_memory" in options:
        options["kv_bytes"] = options.pop("kv_memory") * MIB
    return serve(EngineSettings(**options), progress=output.say)


def _llamacpp(options: dict[str, Any], verbose: bool) -> AbstractContextManager[Engine]:
    from gyre.elastic.llamacpp import LlamaCppSettings, serve

    return serve(LlamaCppSettings(**options, verbose=verbose))


def _until_stopped(serving: AbstractContextManager[Engine], json: bool, *, at_once: bool = False) -> None:
    with serving as running:
        stop = _stop_signal()
        output.say(f"engine ready: {running.url} (model `{running.model}`)")
        if json:
            output.print_json({"schema": SCHEMA, "url": running.url, "model": running.model}, line=True)
        stop.wait()
        if at_once:
            # Nothing to save, and llama.cpp would wait up to 30 s for streams that are still open.
            os._exit(0)
        _exit_within(EXIT_S)
    os._exit(0)  # for the interpreter to take torch apart lasts seconds


def _exit_within(seconds: float) -> None:
    """However long the step takes that is being computed: nothing of it is to be saved either."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True  # the usual end is sooner
    timer.start()


def _stop_signal() -> Stop:
    """Set by SIGINT and SIGTERM: both are the normal way to end a server."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set_soon())
    return stop
