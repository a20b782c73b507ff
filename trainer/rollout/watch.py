"""Until a harness ends or has to: its time, the room it takes, and whether the run goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from gyre.elastic.process.supervised import Report, Supervised
from gyre.trainer.rollout.place import bytes_below

TICK_S = 0.2
_ASK_S = 1.0
_MEASURE_S = 2.0
_MEASURE_SHARE = 20
"""Measuring may take a twentieth of the time: of large workspaces it happens less often."""


class Ending(StrEnum):
    """Why a harness ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    """Processes."""
    INTERRUPTED = "interrupted"


class Clock:
    """When the time is over. It stands still while gyre itself holds calls.

    `held_s` says for how long it has; it is asked when the time would be over without it.
    """

    def __init__(
        self, limit_s: float, held_s: Callable[[], float], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._since, self._limit_s = now(), limit_s
        self._held_s, self._now = held_s, now
        self._ask_at = self._since + limit_s

    def over(self) -> bool:
        if self._now() < self._ask_at:
            return False
        end = self._since + self._limit_s + self._held_s()
        now = self._now()
        # A call that is held now moves the end with every look at it.
        self._ask_at = max(end, now + _ASK_S)
        return now >= end


class Quota:
    """Whether files take more room than they may."""

    def __init__(self, limit: int, folders: Sequence[Path]) -> None:
        self.limit = limit
        self.bytes = 0
        self._folders = folders
        self._next = time.monotonic() + _MEASURE_S

    def exceeded(self, *, at_once: bool = False) -> bool:
        begun = time.monotonic()
        if at_once or begun >= self._next:
            self.bytes = sum(bytes_below(folder) for folder in self._folders)
            now = time.monotonic()
            self._next = now + max(_MEASURE_S, _MEASURE_SHARE * (now - begun))
        return self.bytes > self.limit


def watch(running: Supervised, clock: Clock, quota: Quota, stop: threading.Event) -> tuple[Ending, Report]:
    """Wait for its end, and bring it about where it must be."""
    ending = Ending.EXITED
    while (report := running.wait(TICK_S)) is None:
        if ending is Ending.EXITED and (must := _must_end(clock, quota, stop)):
            ending = must
            running.stop()
    if ending is Ending.EXITED and report.crowded:
        ending = Ending.TOO_MANY
    if ending is Ending.EXITED and quota.exceeded(at_once=True):
        ending = Ending.TOO_LARGE
    return ending, report


def _must_end(clock: Clock, quota: Quota, stop: threading.Event) -> Ending | None:
    if stop.is_set():
        return Ending.INTERRUPTED
    if clock.over():
        return Ending.TIMED_OUT
    return Ending.TOO_LARGE if quota.exceeded() else None
