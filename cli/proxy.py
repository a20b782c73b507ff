"""`gyre proxy`: record every model call of an agent that is pointed at it."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gyre.cli import output

if TYPE_CHECKING:
    from gyre.proxy.settings import ProxySettings

SCHEMA = 1


class Profile(StrEnum):
    """What an engine can say about tokens."""

    AUTO = "auto"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    GYRE = "gyre"
    TEXT = "text"


class Durability(StrEnum):
    """When a record reaches the disk itself."""

    INTERVAL = "interval"
    ALWAYS = "always"
    OFF = "off"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def proxy(
    upstream: Annotated[
        list[str] | None, typer.Option(help="URL of an engine; repeat it for several.", show_default=False)
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder to record into.", show_default=False)] = None,
    profile: Annotated[
        Profile | None,
        typer.Option(help="What the engines can say about tokens; `auto` asks them.", show_default="auto"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.", show_default="8400"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the port.", show_default="1")
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="When records are forced to the disk.", show_default="interval"),
    ] = None,
    hold: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds a call waits while no engine is ready.", show_default="45"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file; flags win over it.", show_default=False)
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="How problems are shown on stderr.")] = LogFormat.TEXT,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Record the calls of any agent that uses this as its base URL, until Ctrl-C."""
    from gyre.proxy.errors import ConfigError
    from gyre.proxy.serve import logs as proxy_logs
    from gyre.proxy.settings import load_settings

    if profile and not upstream:
        raise ConfigError("`--profile` says what `--upstream` is, and none is given", "add `--upstream URL`")
    backends = [{"url": url, "profile": (profile or Profile.AUTO).value} for url in upstream or ()]
    flags = {
        "logs": str(logs) if logs else None,
        "host": host,
        "port": port,
        "workers": workers,
        "backends": backends or None,
        "log.durability": durability.value if durability else None,
        "limits.hold_s": hold,
    }
    settings = load_settings(config, flags)
    level = logging.DEBUG if verbose or output.manner.verbose else logging.WARNING
    proxy_logs.install(log_format.value, level)
    raise typer.Exit(_run(settings, log_format, level, json))


def _run(settings: ProxySettings, log_format: LogFormat, level: int, json: bool) -> int:
    def ready(url: str) -> None:
        output.say(f"proxy ready: {url}")
        output.say(f"point an agent at it: OPENAI_BASE_URL={url}/x/my-run/v1")
        output.say(f"see what it records:  gyre log calls {settings.logs}")
        if json:
            output.print_json({"schema": SCHEMA, "url": url, "pid": os.getpid()}, line=True)

    if settings.workers == 1:
        from gyre.proxy.serve.server import run_single

        return run_single(settings, ready)
    from gyre.proxy.serve.supervisor import run_supervised

    return run_supervised(settings, ready, log_format.value, level)
