"""What died is started again, until it is given up."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from gyre.proxy.errors import EngineError, GyreError

LIMIT = 5
WINDOW_S = 120.0
STARTS = 3
"""One that does not come up so many times in a row never will."""
_FIRST_PAUSE_S = 0.25


class Deaths:
    """Of services, by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: dict[str, deque[float]] = {}
        self.counts: Counter[str] = Counter()
        """Of all time."""

    def note(self, name: str) -> None:
        self.counts[name] += 1
        self._of(name).append(self._clock())

    def too_many(self, name: str) -> bool:
        """Whether it died so often within so short a time that it will again."""
        return len(self._of(name)) >= LIMIT

    def pause_s(self, name: str) -> float:
        """How long to wait before it is started again."""
        recent = len(self._of(name))
        return _FIRST_PAUSE_S * float(2 ** (recent - 2)) if recent > 1 else 0.0

    def _of(self, name: str) -> deque[float]:
        recent = self._recent.setdefault(name, deque(maxlen=LIMIT))
        while recent and recent[0] < self._clock() - WINDOW_S:
            recent.popleft()
        return recent


def revive(name: str, begin: Callable[[], None], deaths: Deaths, over: threading.Event) -> None:
    """Try until `begin` succeeds, or `over` says that nobody wants it any more.

    Raises:
        GyreError: it failed too often, or what it is about died too often.
    """
    deaths.note(name)
    for attempt in range(STARTS):
        if deaths.too_many(name):
            said = f"`{name}` died {LIMIT} times within {WINDOW_S:g} s"
            raise EngineError(said, "`services/` in the run's folder has what it said")
        if over.wait(deaths.pause_s(name)):
            return
        try:
            begin()
            return
        except GyreError:
            if attempt == STARTS - 1 or over.is_set():
                raise
            deaths.note(name)
