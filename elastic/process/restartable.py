"""A process that is started again and again."""

from __future__ import annotations

import threading

from gyre.elastic.process.supervised import Program, Supervised


class Restartable:
    """At most one process at a time; any thread may ask."""

    def __init__(self, stop_s: float) -> None:
        """`stop_s`: how long the end of a process is waited for."""
        self._stop_s = stop_s
        self._lock = threading.Lock()
        self._running: Supervised | None = None

    @property
    def pid(self) -> int | None:
        return self._running.pid if self._running else None

    def alive(self) -> bool:
        with self._lock:
            return self._running is not None and self._running.wait(0) is None

    def stop(self) -> None:
        """End it and all that it started."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            with running:
                running.stop()
                running.wait(self._stop_s)

    def _launch(self, program: Program) -> int:
        """Its process number. StartError: there is no such program."""
        with self._lock:
            self._running = Supervised(program)
            return self._running.pid
