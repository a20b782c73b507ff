"""How a process of the proxy learns that it shall end, and how long it may take."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


class Stop:
    """Whether the server shall end, and until when open calls may go on."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self._deadline = float("inf")

    def within(self, seconds: float) -> None:
        """End; asked again, the earlier deadline holds."""
        self._deadline = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        self.wanted.set()

    @property
    def left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()


def stop_on_signals(gracefully: Callable[[], None], at_once: Callable[[], None]) -> None:
    """The first SIGINT or SIGTERM ends gracefully, the second at once; the journal is whole either way."""
    signals: list[int] = []

    def asked(number: int) -> None:
        signals.append(number)
        if len(signals) == 1:
            gracefully()
        else:
            at_once()
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked, number)
