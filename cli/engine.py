"""`gyre engine`: a small real engine to record, for demos, tests and a first look."""

from __future__ import annotations

import os
import signal
import threading
from enum import StrEnum
from typing import Annotated

import typer

from gyre.cli import output

SCHEMA = 1


class Runtime(StrEnum):
    """What runs the model."""

    LLAMACPP = "llamacpp"


def engine(
    model: Annotated[str, typer.Option(help="`smollm2`, or the path of a .gguf file.")] = "smollm2",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    runtime: Annotated[Runtime, typer.Option(help="What runs the model.")] = Runtime.LLAMACPP,
    ctx: Annotated[int, typer.Option(min=128, help="Tokens of context per request.")] = 8192,
    slots: Annotated[int, typer.Option(min=1, help="Requests served at the same time.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Serve a model on this machine until Ctrl-C, with a neutral sampler."""
    from gyre.elastic.llamacpp import LlamaCppSettings, serve

    stop = _stop_signal()
    settings = LlamaCppSettings(
        model=model,
        host=host,
        port=port,
        ctx=ctx,
        slots=slots,
        threads=threads,
        verbose=verbose or output.manner.verbose,
    )
    with serve(settings) as running:
        output.say(f"engine ready: {running.url} (model `{running.model}`)")
        if json:
            output.print_json({"schema": SCHEMA, "url": running.url, "model": running.model}, line=True)
        stop.wait()
        # Nothing to save, and llama.cpp would wait up to 30 s for streams that are still open.
        os._exit(0)


def _stop_signal() -> threading.Event:
    """Set by SIGINT and SIGTERM: both are the normal way to end a server."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
