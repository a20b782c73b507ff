"""When something that dies again and again is given up. Pure, but for the clock it is given."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

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
