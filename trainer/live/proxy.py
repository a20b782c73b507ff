"""The proxy of a live run: its configuration as a file, and the process."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from gyre.elastic.engines.face import Engine
from gyre.elastic.engines.pulse import Pulse
from gyre.elastic.process.port import lasting_port
from gyre.proxy.errors import UpstreamError
from gyre.proxy.log.live import TOKEN_ENV
from gyre.proxy.settings import Pin
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.jobs import pinned
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.private import PrivateProxy

_HOLD_S = 300.0
_SHUTDOWN_S = 10.0
_PATIENCE_S = 20.0
_AGAIN_S = 0.2
_LISTEN_S = 5.0
"""Between looks at whether it answers."""
_GLANCE_S = 2.0
TELLS_ITSELF = "gyre"
"""The profile of engines that say with each token which version sampled it."""


@dataclass(slots=True)
class _Backend:
    """What the proxy is to know of an engine now."""

    engine: Engine
    key_env: str
    version: str = ""
    draining: bool = False


class RunProxy:
    """Started again it has the same address, and knows of each engine what it was told last.

    Any thread may tell it something.
    """

    def __init__(
        self, engines: Sequence[Engine], folder: LiveFolder, temperature: float, restart_s: float = 0.0
    ) -> None:
        """`restart_s`: how long engines may take to be there again. Calls wait as long, and five minutes at
        least."""
        named = enumerate(engines)
        self._backends = {each.name: _Backend(each, f"GYRE_ENGINE_KEY_{number}") for number, each in named}
        self._temperature = temperature
        self._hold_s = max(_HOLD_S, restart_s)
        self._file = folder.services / "proxy.toml"
        self._port = lasting_port()
        # Agents are let in by keys for their own executions. What steers the proxy is not theirs.
        token = secrets.token_urlsafe(24)
        self._process = PrivateProxy(
            ["--config", str(self._file)],
            folder.logs,
            folder.services,
            taken="is another run at work in this folder?",
            env=os.environ | {TOKEN_ENV: token} | self._keys(),
        )
        self.control = Control(f"http://127.0.0.1:{self._port}", folder.logs, token)
        self._pulse = Pulse(self._answers)
        self._listen_at = 0.0
        self._turn = threading.Lock()
        """Of who starts it, or changes what it reads then."""

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def start(self, version: str) -> None:
        """With engines that all serve `version`. Raises what `PrivateProxy.start` does."""
        for backend in self._backends.values():
            backend.version = version
        self.start_again()

    def start_again(self) -> None:
        """With engines as they were told of last. Raises what `PrivateProxy.start` does."""
        with self._turn:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("\n".join(self._lines()) + "\n")
            self._process.start()
            self._pulse.begin()

    def tell(self, engine: Engine, *, version: str | None = None, draining: bool | None = None) -> None:
        """Returns once it knows, or is gone: then it reads it when it is started again.

        Raises:
            UpstreamError: it is there, and does not take it.
        """
        backend = self._backends[engine.name]
        with self._turn:  # one that is being started has read what there was before
            backend.version = backend.version if version is None else version
            backend.draining = backend.draining if draining is None else draining
        change: dict[str, object] = {"draining": backend.draining}
        if engine.profile != TELLS_ITSELF:
            change["version"] = backend.version
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                # None: it does not know the engine, which it has in its configuration.
                if self.control.ask("PATCH", f"/gyre/v1/backends/{engine.name}", change) is not None:
                    return
                problem = UpstreamError(f"the proxy does not know engine `{engine.name}`")
            except UpstreamError as refused:
                problem = refused
            if not self._process.alive():
                return
            if time.monotonic() > end:
                raise problem
            time.sleep(_AGAIN_S)

    def alive(self) -> bool:
        """Whether it runs, and has answered of late: one that hangs is as good as dead."""
        if not self._process.alive():
            return False
        if time.monotonic() < self._listen_at:
            return True
        self._listen_at = time.monotonic() + _LISTEN_S
        return self._pulse.beats()

    def stop(self) -> None:
        self._process.stop()

    def _answers(self) -> bool | None:
        try:
            # What it says of the engines is not asked here.
            httpx.get(f"{self.control.url}/healthz", timeout=_GLANCE_S, trust_env=False, verify=False)
        except httpx.HTTPError:
            return None
        return True

    def _keys(self) -> dict[str, str]:
        """In its environment alone, where agents do not look."""
        return {each.key_env: key for each in self._backends.values() if (key := each.engine.key)}

    def _lines(self) -> Iterator[str]:
        yield "# Written by `gyre train` at each start of the proxy."
        yield f"port = {self._port}"
        yield f"shutdown_s = {_SHUTDOWN_S}"
        yield f"limits.hold_s = {self._hold_s}"
        yield from _pin_lines(pinned(self._temperature))
        for backend in self._backends.values():
            engine = backend.engine
            yield "\n[[backends]]"
            yield f"name = {_text(engine.name)}"
            yield f"url = {_text(engine.url)}"
            yield f"profile = {_text(engine.profile)}"
            if engine.key:
                yield f"key_env = {_text(backend.key_env)}"
            if engine.profile != TELLS_ITSELF:
                yield f"version = {_text(backend.version)}"
            if backend.draining:
                yield "draining = true"


def _pin_lines(pin: Pin) -> Iterator[str]:
    for name in pin.__struct_fields__:
        if (value := getattr(pin, name)) is not None:
            yield f"pin.{name} = {value}"


def _text(value: str) -> str:
    return json.dumps(value)
