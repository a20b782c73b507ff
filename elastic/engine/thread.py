"""The thread that owns the model: it steps while there is work, and sleeps otherwise."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits, EngineStats
from gyre.elastic.engine.request import GenerationRequest, Listener
from gyre.elastic.engine.schedule.door import require_place, require_sound
from gyre.proxy.errors import RequestError

log = logging.getLogger(__name__)
T = TypeVar("T")


class EngineThread:
    """All methods may be called from any thread; the core is touched by its own alone."""

    def __init__(self, core: Core, *, after_step: Callable[[], None] | None = None) -> None:
        self.after_step = after_step
        """Called on the engine's thread once listeners may have heard something."""
        self._core = core
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gyre-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End within the running step; what is open hears of an abort."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, choices: Sequence[tuple[GenerationRequest, Listener]]) -> Future[None]:
        """Add the choices of one call; the future is done when they are in the queue.

        Raises:
            RequestError: a request is not sound, or the queue is full. What only the engine's thread can
                tell (an id in use, an unknown `kv_id`) comes through the future.
        """
        core = self._core
        requests = [request for request, _ in choices]
        require_sound(requests, core.model, core.limits, core.memory.shape)
        require_place(len(choices), len(core.roster) + len(self._inbox), core.limits)
        return self.call(lambda core: core.add(choices))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests within a step; their listeners hear of it. After `close` all have ended."""
        names = list(request_ids)
        with contextlib.suppress(RequestError):
            self.call(lambda core: core.abort(names))

    def call(self, work: Callable[[Core], T]) -> Future[T]:
        """Run `work` between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            # Whatever goes wrong belongs to the caller, who holds the future.
            try:
                future.set_result(work(self._core))
            except Exception as error:
                future.set_exception(error)

        with self._wake:
            if self._closed:
                raise RequestError("the engine is stopping", 503, "stopping")
            self._inbox.append(run)
            self._wake.notify()
        return future

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return self._thread.is_alive() and not self._closed

    @property
    def limits(self) -> EngineLimits:
        return self._core.limits

    @property
    def stats(self) -> EngineStats:
        """The present, as far as another thread can see it."""
        return self._core.stats

    def _run(self) -> None:
        while not self._closed:
            self._work_off()
            busy = self._step()
            self._tell()
            if not busy:
                self._sleep()
        self._work_off()
        self._core.pause("abort")
        self._tell()

    def _work_off(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _step(self) -> bool:
        # The core fails requests, not steps; should it err all the same, the others must not wait for ever.
        try:
            return self._core.step()
        except Exception:
            log.exception("a step of the engine failed: all its requests end")
            self._core.fail_all("the engine failed; see its log")
            return True

    def _tell(self) -> None:
        # The server's code, as a listener is: an event loop that has just closed must not end the engine.
        try:
            if self.after_step is not None:
                self.after_step()
        except Exception:
            log.exception("the engine's news could not be told")

    def _sleep(self) -> None:
        with self._wake:
            while not self._inbox and not self._closed:
                self._wake.wait()
