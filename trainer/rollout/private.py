"""The proxy of a run: one that is running already, or one of its own that ends with it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gyre.elastic.process.restartable import Restartable
from gyre.elastic.process.supervised import Program, StartError
from gyre.elastic.process.words import complaint
from gyre.proxy.errors import ConfigError, UpstreamError
from gyre.proxy.log.folder import Folder, open_folder
from gyre.proxy.log.live import proxy_url
from gyre.trainer.rollout.control import Control

_START_S = 60.0
_STOP_S = 40.0
"""It lets open calls finish for 30 s, and closes the log."""
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


class PrivateProxy(Restartable):
    """A proxy that ends with this process, and can be started again where it was. Any thread may ask."""

    def __init__(
        self,
        options: Sequence[str],
        logs: Path,
        output: Path,
        *,
        taken: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`options` are those of `gyre proxy` but `--logs`; what it says goes to the folder `output`.

        `taken` is the hint when another one writes `logs`, `env` its environment in place of ours.
        """
        super().__init__(_STOP_S)
        self._env = os.environ if env is None else env
        self._command = [sys.executable, "-m", "gyre.cli.main", "proxy", *options, "--logs", str(logs)]
        self._logs = logs
        self._output = output
        self._taken = taken

    def start(self) -> str:
        """Its URL, once it takes calls.

        Raises:
            ConfigError: another proxy writes the log.
            StartError: it does not come up.
        """
        self.stop()
        _require_alone(self._logs, self._taken)
        self._output.mkdir(parents=True, exist_ok=True)
        program = Program(
            argv=self._command,
            env=self._env,
            cwd=Path.cwd(),
            stdout=self._output / "proxy.stdout.txt",
            stderr=self._output / "proxy.txt",
            grace_s=_STOP_S,
        )
        pid = self._launch(program)
        try:
            return self._announced(pid, program.stderr)
        except BaseException:
            self.stop()
            raise

    def _announced(self, pid: int, said: Path) -> str:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self.alive():
            if (url := _url_of(pid, self._logs)) is not None:
                return url
            time.sleep(0.05)
        error, hint = complaint(said)
        raise StartError(f"the proxy does not start: {error or 'it says nothing'}", hint or f"see `{said}`")


@contextmanager
def private_proxy(upstream: Sequence[str], logs: Path, output: Path) -> Iterator[Control]:
    """A proxy on a free port for the length of the block; it outlives neither that nor this process.

    Raises:
        ConfigError: another proxy writes `logs`.
        StartError: it does not come up.
    """
    engines = [word for url in upstream for word in ("--upstream", url)]
    proxy = PrivateProxy([*engines, "--port", "0"], logs, output, taken="leave out `--upstream`")
    try:
        yield Control(proxy.start(), logs)
    finally:
        proxy.stop()


def _require_alone(logs: Path, hint: str) -> None:
    """One that is just ending, as after a run that was killed, is waited for."""
    end = time.monotonic() + _STOP_S
    doubt = time.monotonic() + _DOUBT_S
    while (url := proxy_url(Folder(logs))) is not None:
        now = time.monotonic()
        if now > end or (now > doubt and _serves(url)):
            raise ConfigError(f"a proxy at `{url}` writes `{logs}` already", hint)
        time.sleep(0.1)


def _serves(url: str) -> bool:
    """Whether it goes on. One that ends does not listen any more, or says so."""
    try:
        status = Control(url).ask("GET", "/gyre/v1/status")
    except UpstreamError:
        return False
    return status is not None and not status["stopping"]


def _url_of(pid: int, logs: Path) -> str | None:
    try:
        told = json.loads(Folder(logs).proxy_file.read_bytes())
        return str(told["url"]) if told["pid"] == pid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
