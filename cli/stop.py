"""What a signal does to a command that has something to bring to an end."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stop(threading.Event):
    """Set when the user wants an end."""

    code = 0
    """Exit code then."""

    def is_set(self) -> bool:
        """From the signal on, also before `set_soon` has come to it."""
        return self.code != 0 or super().is_set()

    def set_soon(self) -> None:
        """For handlers of signals: they run in a thread that may hold, in `wait`, the lock `set` needs."""
        _thread.start_new_thread(self.set, ())


@contextmanager
def interruptible(told: str) -> Iterator[Stop]:
    """Ctrl-C and SIGTERM set it and say `told`, if anything; the second one ends the process on the spot."""
    stop = Stop()

    def asked(number: int, frame: object) -> None:
        if stop.code:
            os._exit(stop.code)
        stop.code = 128 + number
        stop.set_soon()
        if told:
            os.write(2, told.encode() + b"\n")

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
