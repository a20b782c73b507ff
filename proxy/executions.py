"""What the proxy knows of each execution while it runs. Values only."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from gyre.proxy.settings import Pin

_MOST = 100_000


@dataclass(slots=True)
class ExecutionState:
    """One execution as a worker sees it."""

    name: str
    task: str | None = None
    group: str | None = None
    evaluation: bool | None = None
    pin: Pin | None = None
    """Sampling forced on its calls; None leaves the proxy's own setting."""
    ends: int = 0
    """How often it ended; a call after an end belongs to the next attempt."""
    over: bool = False
    calls: int = 0
    open: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_ns: int = field(default_factory=time.time_ns)
    last_ns: int = field(default_factory=time.time_ns)


class Executions:
    """All executions seen since the start; the longest idle are forgotten beyond 100,000."""

    def __init__(self) -> None:
        self.known: OrderedDict[str, ExecutionState] = OrderedDict()

    def get(self, name: str) -> ExecutionState:
        state = self.known.get(name)
        if state is None:
            state = self.known[name] = ExecutionState(name)
            if len(self.known) > _MOST:
                self.known.popitem(last=False)
        return state

    def begin_call(self, name: str) -> ExecutionState:
        """A call arrives. After an end it opens the name's next attempt."""
        state = self.get(name)
        state.over = False
        state.calls += 1
        state.open += 1
        state.last_ns = time.time_ns()
        return state

    def end_call(self, state: ExecutionState, attempt: int) -> bool:
        """The call is over; True when its execution had ended meanwhile (`late`)."""
        state.open -= 1
        state.last_ns = time.time_ns()
        return state.ends > attempt

    def end(self, name: str) -> int:
        """The execution ended; returns which attempt of the name that was."""
        state = self.get(name)
        attempt = state.ends
        if not state.over:
            state.ends += 1
            state.over = True
        return min(attempt, state.ends - 1)
