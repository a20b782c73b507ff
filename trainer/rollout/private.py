"""The proxy of a run: one that is running already, or one of its own that ends with it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gyre.elastic.process.supervised import Program, StartError, Supervised
from gyre.proxy.errors import ConfigError, UpstreamError
from gyre.proxy.log.folder import Folder, open_folder
from gyre.proxy.log.live import proxy_url
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.judge import last_words

_START_S = 60.0
_STOP_S = 40.0
"""It lets open calls finish for 30 s."""
_DOUBT_S = 1.0
"""How long one whose run was killed may take to notice."""


def running_proxy(url: str) -> Control:
    """The proxy at `url`, with its log where that lies on this machine.

    Raises:
        UpstreamError: there is none.
    """
    control = Control(url)
    status = control.ask("GET", "/gyre/v1/status")
    if status is None:
        raise UpstreamError(
            f"what listens at `{control.url}` is no gyre proxy", "give the URL that it prints"
        )
    logs = Path(status["logs"])
    if proxy_url(Folder(logs)) is not None:
        control.logs = logs
    return control


def proxy_of(logs: Path) -> Control:
    """The proxy that writes `logs`.

    Raises:
        UpstreamError: none does.
    """
    url = proxy_url(open_folder(logs)) if logs.is_dir() else None
    if url is None:
        hint = f"give `--upstream URL`, or start one: gyre proxy --upstream URL --logs {logs}"
        raise UpstreamError(f"no proxy writes `{logs}`", hint)
    return Control(url, logs)


@contextmanager
def private_proxy(upstream: Sequence[str], logs: Path, output: Path) -> Iterator[Control]:
    """A proxy on a free port for the length of the block; it outlives neither that nor this process.

    Raises:
        ConfigError: another proxy writes `logs`.
        StartError: it does not come up.
    """
    _require_alone(logs)
    engines = [word for url in upstream for word in ("--upstream", url)]
    command = [sys.executable, "-m", "gyre.cli.main", "proxy", *engines, "--logs", str(logs), "--port", "0"]
    output.mkdir(parents=True, exist_ok=True)
    program = Program(
        argv=command,
        env=os.environ,
        cwd=Path.cwd(),
        stdout=output / "proxy.stdout.txt",
        stderr=output / "proxy.txt",
        grace_s=_STOP_S,
    )
    with Supervised(program) as running:
        try:
            yield Control(_announced(running, logs, program.stderr), logs)
        finally:
            running.stop()
            running.wait(_STOP_S)


def _require_alone(logs: Path) -> None:
    """One that is just ending, as after a run that was killed, is waited for."""
    end = time.monotonic() + _STOP_S
    doubt = time.monotonic() + _DOUBT_S
    while (url := proxy_url(Folder(logs))) is not None:
        now = time.monotonic()
        if now > end or (now > doubt and _serves(url)):
            raise ConfigError(f"a proxy at `{url}` writes `{logs}` already", "leave out `--upstream`")
        time.sleep(0.1)


def _serves(url: str) -> bool:
    """Whether it goes on. One that ends does not listen any more, or says so."""
    try:
        status = Control(url).ask("GET", "/gyre/v1/status")
    except UpstreamError:
        return False
    return status is not None and not status["stopping"]


def _announced(running: Supervised, logs: Path, said: Path) -> str:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if running.wait(0.05) is not None:
            break
        if (url := _url_of(running.pid, logs)) is not None:
            return url
    lines = dict(line.split(": ", 1) for line in said.read_text().splitlines() if ": " in line)
    why = lines.get("error") or last_words(said)
    raise StartError(f"the proxy does not start: {why}", lines.get("hint", f"see `{said}`"))


def _url_of(pid: int, logs: Path) -> str | None:
    try:
        told = json.loads(Folder(logs).proxy_file.read_bytes())
        return str(told["url"]) if told["pid"] == pid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
