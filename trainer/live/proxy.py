"""The proxy of a live run: its configuration as a file, and the process."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence

from gyre.elastic.engines.face import Engine
from gyre.elastic.process.port import lasting_port
from gyre.proxy.log.live import TOKEN_ENV
from gyre.proxy.settings import Pin
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.jobs import pinned
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.private import PrivateProxy

HOLD_S = 300.0
"""How long a call waits while engines are started again."""
_SHUTDOWN_S = 10.0
TELLS_ITSELF = "gyre"
"""The profile of engines that say with each token which version sampled it."""


class RunProxy:
    """Started again it has the same address, and knows the engines with the version they have then."""

    def __init__(self, engines: Sequence[Engine], folder: LiveFolder, temperature: float) -> None:
        self._engines = engines
        self._temperature = temperature
        self._file = folder.services / "proxy.toml"
        self._port = lasting_port()
        # Agents are let in by keys for their own executions. What steers the proxy is not theirs.
        token = secrets.token_urlsafe(24)
        self._process = PrivateProxy(
            ["--config", str(self._file)],
            folder.logs,
            folder.services,
            taken="is another run at work in this folder?",
            env=os.environ | {TOKEN_ENV: token},
        )
        self.control = Control(f"http://127.0.0.1:{self._port}", folder.logs, token)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def start(self, version: str) -> None:
        """Raises what `PrivateProxy.start` does."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("\n".join(self._lines(version)) + "\n")
        self._process.start()

    def alive(self) -> bool:
        return self._process.alive()

    def stop(self) -> None:
        self._process.stop()

    def _lines(self, version: str) -> Iterator[str]:
        yield "# Written by `gyre train` at each start of the proxy."
        yield f"port = {self._port}"
        yield f"shutdown_s = {_SHUTDOWN_S}"
        yield f"limits.hold_s = {HOLD_S}"
        yield from _pin_lines(pinned(self._temperature))
        for engine in self._engines:
            yield "\n[[backends]]"
            yield f"name = {_text(engine.name)}"
            yield f"url = {_text(engine.url)}"
            yield f"profile = {_text(engine.profile)}"
            if engine.profile != TELLS_ITSELF:
                yield f"version = {_text(version)}"


def _pin_lines(pin: Pin) -> Iterator[str]:
    for name in pin.__struct_fields__:
        if (value := getattr(pin, name)) is not None:
            yield f"pin.{name} = {value}"


def _text(value: str) -> str:
    return json.dumps(value)
