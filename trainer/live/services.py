"""What a live run needs beside its trainer: engines with the newest weights, and a proxy in front of them.

    with Services(settings, folder, tell) as services:
        control = services.start(model_folder, "0")
        services.publish(newer_folder, "1")

A thread watches them. What dies is started again where it was, an engine with the newest weights; meanwhile
the proxy holds the calls, and agents see nothing but a slow answer. All of it ends with this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gyre.elastic.engines.face import Engine
from gyre.elastic.engines.logprobs import Expected, check_logprobs
from gyre.elastic.engines.outside import told_of_pause
from gyre.elastic.engines.tokenizer import check_tokenizer
from gyre.proxy.errors import EngineError, GyreError, UpstreamError
from gyre.proxy.units import seconds_of
from gyre.trainer.live.claims import require_served
from gyre.trainer.live.deaths import STARTS, Deaths, revive
from gyre.trainer.live.engines import engines_of
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.proxy import TELLS_ITSELF, RunProxy
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.rollout.control import Control, Model
from gyre.trainer.update.computing import Stopped

_WATCH_S = 0.5
_PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Swapped:
    """How a publication went."""

    seconds: float
    held: int
    """Requests that were open at the engines when it began."""


@dataclass(frozen=True, slots=True)
class _Served:
    folder: Path
    version: str
    expected: Expected | None


class Services:
    """All methods are for one thread; the watch is beside it."""

    def __init__(
        self,
        settings: RunSettings,
        folder: LiveFolder,
        tell: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`tell` is told of what died. `stop`: whether a start that is under way is to be broken off.

        Raises:
            TrainError: what `[engine]` says does not go together.
        """
        self._settings = settings
        self._tell = tell
        self._stop = stop
        self.engines: Sequence[Engine] = engines_of(settings, folder)
        restart_s = STARTS * seconds_of(settings.engine.start_timeout)
        self._proxy = RunProxy(self.engines, folder, settings.sampling.temperature, restart_s)
        self._served: _Served | None = None
        self._model = Model("", None)
        self._deaths = Deaths()
        self._turn = threading.RLock()
        """Of who starts, stops or publishes."""
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watched, name="services", daemon=True)
        self.failed: GyreError | None = None
        """Set when one of them cannot be kept alive: the run has to end with it."""

    @property
    def opaque(self) -> bool:
        """Whether engines do not tell the digest of their weights: their log-probabilities have to do it."""
        return any(engine.profile != TELLS_ITSELF for engine in self.engines)

    def start(self, model_folder: Path, version: str, expected: Expected | None = None) -> Control:
        """Engines that serve the folder as `version`, and a proxy that takes calls for them.

        `expected`: what the weights make of a prompt, for engines that are opaque. Without it nobody can
        know what these compute with, which is told.

        Raises:
            GyreError: one does not come up, or serves something else; what it said last is in the hint.
            Stopped: before all of them were there.
        """
        served = self._served = _Served(model_folder, version, expected)
        if self.opaque and expected is None:
            self._tell(
                f"`{model_folder}` has no tokenizer that can be read: engines are not compared with it"
            )
        self._start_engines(served)
        self._verify(self.engines, served)
        self._proxy.start(version)
        self._model = self.control.model()
        for engine in self.engines:
            if engine.profile != TELLS_ITSELF:  # ours has that of the folder
                check_tokenizer(engine, self.model, model_folder)
        self._compare(self.engines, served)
        self._watch.start()
        return self.control

    @property
    def control(self) -> Control:
        return self._proxy.control

    @property
    def proxy_pid(self) -> int | None:
        return self._proxy.pid

    @property
    def model(self) -> str:
        """Its name for harnesses: the same after publications and restarts."""
        return self._model.name

    @property
    def context(self) -> int | None:
        """Tokens that the engines take in, where they say it."""
        return self._model.context

    @property
    def restarts(self) -> Mapping[str, int]:
        """Of engines by name, and of the `proxy`."""
        return dict(self._deaths.counts)

    def publish(self, model_folder: Path, version: str, expected: Expected | None = None) -> Swapped:
        """Whatever is sampled from now on is of `version`. The same version again: its weights, other files.

        An engine that does not take them up is started again with them.

        Raises:
            GyreError: it does not come up with them either, or is not ours to start.
        """
        began, held = time.monotonic(), 0
        with self._turn:
            if self.failed is not None:
                raise self.failed
            assert self._served is not None
            before, served = self._served, _Served(model_folder, version, expected)
            self._served = served
            if version != before.version:
                held = self._open()
                for engine in self.engines:
                    self._publish(engine, served)
                for engine in self.engines:
                    self._prove(engine, served)
        return Swapped(time.monotonic() - began, held)

    def close(self) -> None:
        self._over.set()
        self._stop_all()
        while self._watch.is_alive():
            # It may just have started one again.
            self._watch.join(_WATCH_S)
            self._stop_all()
        self._stop_all()

    def __enter__(self) -> Services:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_engines(self, served: _Served) -> None:
        """Raises what `start` does."""
        failed: BaseException | None = None
        with ThreadPoolExecutor(len(self.engines)) as pool:
            starting = [pool.submit(one.start, served.folder, served.version) for one in self.engines]
            while wait(starting, _WATCH_S).not_done:
                failed = failed or _failure(starting)
                if failed or self._stop():
                    # Each time anew: one may be just about to begin. Whose process ended gives up.
                    self._stop_all()
        if self._stop():
            raise Stopped
        if failed := failed or _failure(starting):
            raise failed

    def _stop_all(self) -> None:
        self._proxy.stop()
        for engine in self.engines:
            engine.stop()

    def _publish(self, engine: Engine, served: _Served) -> None:
        """Frozen as long as the proxy may be wrong about its version, where it does not tell that itself."""
        try:
            if engine.profile == TELLS_ITSELF:
                engine.publish(served.folder, served.version)
                return
            engine.pause()
            with told_of_pause(engine.url, engine.owned):
                engine.publish(served.folder, served.version)
                self._proxy.tell(engine, version=served.version)
                engine.resume()
        except EngineError as problem:
            if not engine.owned and engine.alive():
                raise
            self._tell(f"{problem.message}; it is started again with the new weights")
            self._restart_engine(engine)

    def _prove(self, engine: Engine, served: _Served) -> None:
        """That it has what was published; one that died of late is given it anew."""
        try:
            self._verify([engine], served)
            self._compare([engine], served)
        except EngineError:
            if engine.alive():
                raise
            self._restart_engine(engine)

    def _verify(self, engines: Sequence[Engine], served: _Served) -> None:
        require_served(engines, served.folder, served.version, self._settings.engine.dtype)

    def _compare(self, engines: Sequence[Engine], served: _Served) -> None:
        """By what they compute; they must not be paused."""
        if served.expected is None:
            return
        for engine in engines:
            if engine.profile != TELLS_ITSELF:
                expected, timeout_s = served.expected, seconds_of(self._settings.engine.publish_timeout)
                check_logprobs(engine, self.model, expected.prompt, expected.logprobs, timeout_s=timeout_s)

    def _watched(self) -> None:
        """The thread that starts again what died."""
        while not self._over.wait(_WATCH_S) and self.failed is None:
            with self._turn:
                try:
                    self._look()
                except GyreError as problem:
                    self.failed = problem
                except Stopped:
                    return
                except OSError as problem:
                    self.failed = EngineError(f"a service cannot be started again: {problem}")
                except Exception as problem:  # else nobody would ever hear that nothing is watched any more
                    self.failed = EngineError(f"services are not watched any more: {problem!r}")

    def _look(self) -> None:
        """Returns when all are there. Engines may take minutes: neither proxy nor others wait for one."""
        self._look_at_proxy()
        if all(engine.alive() for engine in self.engines):
            return
        starting: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(len(self.engines)) as pool:
            while not self._over.is_set():
                for engine in self.engines:
                    if engine.name not in starting and not engine.alive():
                        self._tell(f"engine `{engine.name}` died; it is started again")
                        starting[engine.name] = pool.submit(self._restart_engine, engine)
                if not starting:
                    return
                wait(starting.values(), _WATCH_S, FIRST_COMPLETED)
                self._look_at_proxy()
                for name in [name for name, begun in starting.items() if begun.done()]:
                    starting.pop(name).result()

    def _look_at_proxy(self) -> None:
        if not self._over.is_set() and not self._proxy.alive():
            self._tell("the proxy died; it is started again")
            self._restart(_PROXY, lambda _: self._proxy.start_again())

    def _restart_engine(self, engine: Engine) -> None:
        """No call reaches it before it serves the newest weights. Raises what `_restart` does."""

        def begin(served: _Served) -> None:
            self._proxy.tell(engine, draining=True)
            if not engine.owned:
                self._await(engine)
            engine.start(served.folder, served.version)
            self._verify([engine], served)
            self._compare([engine], served)
            self._proxy.tell(engine, draining=False, version=served.version)

        self._restart(engine.name, begin)

    def _await(self, engine: Engine) -> None:
        """Somebody else starts it."""
        limit = seconds_of(self._settings.engine.start_timeout)
        end = time.monotonic() + limit
        while not engine.alive():
            if self._stop():
                raise Stopped
            if time.monotonic() > end or self._over.wait(_WATCH_S):
                raise EngineError(
                    f"engine `{engine.name}` at `{engine.url}` is gone for {limit:g} s", "start it again"
                )

    def _restart(self, name: str, begin: Callable[[_Served], None]) -> None:
        """Raises what `revive` does."""
        served = self._served
        assert served is not None
        revive(name, lambda: begin(served), self._deaths, self._over)

    def _open(self) -> int:
        with suppress(UpstreamError):
            told = self.control.ask("GET", "/gyre/v1/backends")
            return sum(backend["open"] for backend in (told or {}).get("backends") or ())
        return 0


def _failure(starting: Sequence[Future[None]]) -> BaseException | None:
    """Of the first that has failed; those which are stopped for its sake fail later."""
    return next((problem for each in starting if each.done() and (problem := each.exception())), None)
