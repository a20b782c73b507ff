"""Whether an engine lives, by what it says to `/health`: one that is silent for long hangs.

A busy one answers late, and then again. It is silent when nothing at all came back, probe after probe: a
process that is stopped, a server whose loop stands still, a machine that is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SILENCE_S = 60.0
PROBES = 3
"""So many at least: who does not ask for a while has heard nothing either."""


class Pulse:
    """Of one engine. Any thread may ask."""

    def __init__(
        self, healthy: Callable[[], bool | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`healthy`: whether it says that it serves; None when it says nothing."""
        self._healthy = healthy
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """It is a new one."""
        self._since: float | None = None
        self._silent = 0

    def beats(self) -> bool:
        """Whether it is there, as far as one can tell."""
        asked = self._clock()
        said = self._healthy()
        if said is not None:
            self.begin()
            return said
        self._silent += 1
        self._since = asked if self._since is None else self._since
        return self._silent < PROBES or self._clock() - self._since < SILENCE_S
