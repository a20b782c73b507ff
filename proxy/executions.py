"""What the proxy knows of each execution while it runs. Values only.

`ends` and `begun` only ever grow, so workers that saw different calls of one execution agree by
taking the larger of each.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from gyre.proxy.allowance import Allowance
from gyre.proxy.commands import Command, EndExecution, PutExecution, SpendExecution, StartExecution
from gyre.proxy.settings import Pin
from gyre.proxy.tally import Tally

MOST = 100_000


class ExecutionEvent(StrEnum):
    """What the control API can say of an execution; a name that is put writes an event too."""

    STARTED = "started"
    """The first time a name is put, or a new attempt of it begins."""
    UPDATED = "updated"
    ENDED = "ended"
    TIMED_OUT = "timed_out"
    SCORED = "scored"


class ExecutionOutcome(StrEnum):
    """How an execution ended."""

    OPEN = "open"
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    """The harness hit its own limit; what it left is scored."""
    FAILED = "failed"
    NO_ARTIFACT = "no_artifact"
    """It left nothing to score: a score of 0."""
    RUN_TIMEOUT = "run_timeout"
    """The run ended before it did: never trained."""
    SCORER_FAILED = "scorer_failed"


@dataclass(slots=True)
class Held:
    """Time during which at least one call waits in gyre; the harness's own clock should stand still."""

    total: float = 0.0
    waiting: int = 0
    since: float = 0.0

    def enter(self) -> None:
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.total += time.monotonic() - self.since

    @property
    def seconds(self) -> float:
        return self.total + (time.monotonic() - self.since if self.waiting else 0.0)


@dataclass(slots=True)
class ExecutionState:
    """One execution as a worker sees it."""

    name: str
    put: bool = False
    """Whether the control API has named it, and so a `started` event is in the log."""
    task: str | None = None
    group: str | None = None
    evaluation: bool | None = None
    pin: Pin | None = None
    """Sampling forced on its calls; None leaves the proxy's own setting."""
    restore_arguments: bool | None = None
    """Whether arguments of tool calls are put back as sampled; None leaves the proxy's own setting."""
    limits: Allowance | None = None
    tally: Tally = field(default_factory=Tally)
    """Of the newest attempt that has had a call here."""
    spent: tuple[int, str] = (-1, "")
    """The newest attempt that workers together found at its limit, and which limit that is."""
    ends: int = 0
    """How often it ended; a call after an end belongs to the next attempt, of this number."""
    begun: int = 0
    """How many attempts of it have had a call here or were said to have started."""
    held: Held = field(default_factory=Held)
    calls: int = 0
    open: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_ns: int = field(default_factory=time.time_ns)
    last_ns: int = field(default_factory=time.time_ns)
    turn: int = 0
    """When it was touched last, counted in touches of any execution: clocks can jump back."""

    @property
    def over(self) -> bool:
        """Whether it ended and nothing of a next attempt has been seen."""
        return over(self.ends, self.begun)

    @property
    def attempt(self) -> int:
        """The attempt that runs, or the one that ended last."""
        return self.ends - self.over

    def tally_of(self, attempt: int) -> Tally:
        """To count a call of it; of one before the newest nobody asks any more."""
        if attempt > self.tally.attempt:
            self.tally = Tally(attempt=attempt)
        return self.tally if attempt == self.tally.attempt else Tally(attempt=attempt)

    def limit_reached(self, attempt: int) -> str:
        """Which one a call of the attempt would go beyond; empty when none."""
        if self.limits is None:
            return ""
        tally, (spent, limit) = self.tally_of(attempt), self.spent
        return self.limits.reached(tally.begun, tally.tokens) or (limit if spent == attempt else "")


def over(ends: int, begun: int) -> bool:
    return begun <= ends > 0


def placed(name: str, ends: int, begun: int, event: str) -> tuple[int, Command | None]:
    """The attempt that `event` belongs to, and what all workers must learn of it.

    `ends` and `begun` are those of all workers together. What is said after the end belongs to the
    attempt that just ended, until a call or `started` opens the next one.
    """
    ended = over(ends, begun)
    if event == ExecutionEvent.STARTED:
        return ends, StartExecution(name, max(begun, ends + 1))
    if event in (ExecutionEvent.ENDED, ExecutionEvent.TIMED_OUT) and not ended:
        return ends, EndExecution(name, ends + 1)
    return ends - ended, None


class Executions:
    """All executions seen since the start; the longest idle are forgotten beyond 100,000."""

    def __init__(self, most: int = MOST) -> None:
        self.known: OrderedDict[str, ExecutionState] = OrderedDict()
        """The one touched last stands last."""
        self.turn = 0
        self._most = most

    def get(self, name: str) -> ExecutionState:
        """The execution of that name, which is made when it is new."""
        state = self.known.get(name)
        if state is None:
            state = self.known[name] = ExecutionState(name)
            self.touch(state)
            if len(self.known) > self._most:
                self.known.popitem(last=False)
        return state

    def apply(self, command: PutExecution | StartExecution | EndExecution | SpendExecution) -> None:
        state = self.get(command.name)
        match command:
            case StartExecution(begun=begun):
                state.begun = max(state.begun, begun)
            case EndExecution(ends=ends):
                state.ends = max(state.ends, ends)
            case SpendExecution(attempt=attempt, limit=limit):
                state.spent = max(state.spent, (attempt, limit))
            case PutExecution():
                state.put = True
                state.task = state.task if command.task is None else command.task
                state.group = state.group if command.group is None else command.group
                state.evaluation = state.evaluation if command.evaluation is None else command.evaluation
                state.pin = state.pin if command.pin is None else command.pin
                if command.limits is not None:
                    state.limits, state.spent = command.limits, (-1, "")
                if command.restore_arguments is not None:
                    state.restore_arguments = command.restore_arguments
        self.touch(state)

    def begin_call(self, name: str) -> ExecutionState:
        """A call arrives. After an end it opens the name's next attempt."""
        state = self.get(name)
        state.begun = max(state.begun, state.ends + 1)
        state.calls += 1
        state.open += 1
        self.touch(state)
        return state

    def end_call(self, state: ExecutionState, attempt: int) -> bool:
        """The call is over; True when its execution had ended meanwhile (`late`)."""
        state.open -= 1
        self.touch(state)
        return state.ends > attempt

    def touch(self, state: ExecutionState) -> None:
        """Something changed; keeps the order that `recent` and forgetting rely on."""
        state.last_ns = time.time_ns()
        self.turn += 1
        state.turn = self.turn
        if state.name in self.known:
            self.known.move_to_end(state.name)

    def recent(self, after: int = 0) -> Iterator[ExecutionState]:
        """Those touched after that turn, the latest first."""
        for state in reversed(self.known.values()):
            if state.turn <= after:
                return
            yield state
