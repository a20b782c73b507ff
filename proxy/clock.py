"""The limits on one call's phases, and the watch for a client that leaves.

One timer per call, looked at rarely: entering a phase or seeing a byte only notes the time, so a
call that is answered at once pays for a timer that never fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from gyre.proxy.calls import Phase
from gyre.proxy.settings import Timeouts

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_WATCH_AFTER_S = 0.2
"""Calls shorter than this are not watched for a leaving client; cancelling them saves nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The timeouts as a clock wants them; made once, since every call has a clock."""

    phases: dict[Phase, float]
    total: float
    shortest: float

    @staticmethod
    def of(timeouts: Timeouts) -> Limits:
        phases = {
            Phase.CONNECT: timeouts.connect,
            Phase.FIRST_BYTE: timeouts.first_byte,
            Phase.IDLE: timeouts.idle,
        }
        return Limits(phases, timeouts.total, min(*phases.values(), timeouts.total))


class CallClock:
    """Cancels the call's task when a limit is reached (`fired`) or the client is gone (`gone`)."""

    def __init__(self, limits: Limits, receive: Receive) -> None:
        self.fired: Phase | None = None
        self.gone = False
        self.phase = Phase.REQUEST
        self._limits = limits
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._since = self._loop.time()
        self._end = self._since + limits.total
        self._watch: asyncio.Task[None] | None = None
        first = min(_WATCH_AFTER_S, limits.shortest)
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(first, self._look)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self._since = self._loop.time()

    def touch(self) -> None:
        """A byte came: the phase's limit counts from now."""
        self._since = self._loop.time()

    def extend(self, seconds: float) -> None:
        """Time that the proxy itself held the call does not count."""
        self._end += seconds

    def stop(self) -> None:
        """Nothing is cancelled from here on."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._watch:
            self._watch.cancel()
            self._watch = None

    @property
    def cancelled_by_us(self) -> bool:
        return self.gone or self.fired is not None

    def absorb(self) -> None:
        """The cancellation was ours and has been dealt with: the task goes on."""
        if self._task:
            self._task.uncancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = self._since + self._limits.phases.get(self.phase, float("inf"))
        if now >= min(due, self._end):
            self._fire(Phase.TOTAL if now >= self._end else self.phase)
            return
        # Later phases may have shorter limits, so look at least that often.
        wait = min(min(due, self._end) - now, self._limits.shortest)
        if self.phase == Phase.REQUEST:
            # Who reads the body would miss what the watch receives.
            wait = min(wait, _WATCH_AFTER_S)
        elif self._watch is None:
            self._watch = self._loop.create_task(self._await_disconnect())
        self._timer = self._loop.call_later(max(wait, 0.01), self._look)

    def _fire(self, phase: Phase) -> None:
        self.fired = phase
        if self._task:
            self._task.cancel()

    async def _await_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._task:
            self._task.cancel()
