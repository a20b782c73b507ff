"""Executions of a live run, K at once, in threads that each look after one harness at a time.

What goes wrong with one costs that one: it comes to its end as `failed`, or is told of in `failures`. For an
engine or a proxy that was not there it is run again, as a new attempt. A disk that is full ends them all, and
what ended meanwhile is run anew by the next run: its work says nothing.
"""

from __future__ import annotations

import heapq
import logging
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gyre.proxy.errors import GyreError, UpstreamError
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.live.assignment import Assignment, Counts, Finished
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.control import RefusedError
from gyre.trainer.rollout.group import fault, is_open
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.record import Record
from gyre.trainer.rollout.room import RoomError, full_is_told, require_room
from gyre.trainer.rollout.run import deliver, run_execution
from gyre.trainer.rollout.state import State, Status
from gyre.trainer.rollout.tree import remove_tree

log = logging.getLogger(__name__)
PATIENCE_S = 300.0
"""How long a proxy that is started again is waited for, before an execution is given up."""
_EVENT_PATIENCE_S = 20.0
_ASK_S = 2.0
_PAUSE_S = 0.5
_RETRY_S = 1.0
"""Before an execution is run again, so that what was not there can come back."""


@dataclass(slots=True)
class _Lot:
    """An assignment under way."""

    assignment: Assignment
    left: int
    states: dict[str, State] = field(default_factory=dict)
    failures: list[tuple[Job, GyreError]] = field(default_factory=list)
    interrupted: bool = False

    def finished(self) -> Finished:
        found = [self.states[job.name] for job in self.assignment.jobs if job.name in self.states]
        return Finished(key=self.assignment.key, states=found, failures=self.failures)


_Turn = tuple[bool, int, int]
"""When an execution begins: urgent ones first, then as they came."""


class Rollouts:
    """Leaving the block ends what runs; the next run goes on with it.

    `stop`: when it is set, what runs is ended and nothing more begins. `tell` gets each execution that ended,
    in whichever thread.
    """

    def __init__(
        self,
        record: Record,
        stop: threading.Event,
        *,
        at_once: int,
        retries: int = 1,
        patience_s: float = PATIENCE_S,
        tell: Callable[[State], None] = lambda state: None,
    ) -> None:
        self._record = Record(record.control, _ASK_S, event_patience_s=min(_EVENT_PATIENCE_S, patience_s))
        self._stop = stop
        self._retries = retries
        self._patience_s = patience_s
        self._tell = tell
        self.failed: RoomError | None = None
        """Why nothing more is run."""
        self._changed = threading.Condition()
        self._waiting: list[tuple[_Turn, Job, _Lot]] = []
        self._ready: deque[Finished] = deque()
        self._submitted = 0
        self._running = 0
        self._outcomes: Counter[str] = Counter()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"rollout-{number}", daemon=True)
            for number in range(at_once)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, assignment: Assignment) -> None:
        """Have its executions run, in their order."""
        lot = _Lot(assignment, len(assignment.jobs))
        with self._changed:
            self._submitted += 1
            for number, job in enumerate(assignment.jobs):
                turn = (not assignment.urgent, self._submitted, number)
                heapq.heappush(self._waiting, (turn, job, lot))
            if not assignment.jobs:
                self._ready.append(lot.finished())
            self._changed.notify_all()

    def next(self, timeout_s: float) -> Finished | None:
        """One all of whose executions have ended; each is given once. None: there is none by then."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready, timeout_s)
            return self._ready.popleft() if self._ready else None

    @property
    def counts(self) -> Counts:
        with self._changed:
            return Counts(
                running=self._running,
                waiting=len(self._waiting),
                done=self._outcomes.total(),
                timed_out=self._outcomes[ExecutionOutcome.TIMED_OUT],
                outcomes=dict(self._outcomes),
            )

    def close(self) -> None:
        """End what runs, so that the next run can go on with it."""
        self._stop.set()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            job, lot = taken
            ended = self._outcome(job, lot.assignment)
            with self._changed:
                self._running -= 1
                self._note(job, lot, ended)
                self._changed.notify_all()

    def _take(self) -> tuple[Job, _Lot] | None:
        """The next execution; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            _, job, lot = heapq.heappop(self._waiting)
            self._running += 1
            return job, lot

    def _note(self, job: Job, lot: _Lot, ended: State | GyreError) -> None:
        lot.left -= 1
        if isinstance(ended, GyreError):
            lot.failures.append((job, ended))
        elif ended.status in (Status.DONE, Status.NOT_STARTED):
            lot.states[job.name] = ended
            self._outcomes[ended.outcome] += 1
        else:
            lot.interrupted = True
        if not lot.left and not lot.interrupted:
            self._ready.append(lot.finished())

    def _outcome(self, job: Job, assignment: Assignment) -> State | GyreError:
        """Its end, or why it could not be tried. A fault of ours is the end of this execution only."""
        try:
            ended = self._run(job, assignment)
            if ended.status in (Status.DONE, Status.NOT_STARTED):
                self._tell(ended)
            return ended
        except RoomError as problem:
            self.failed = self.failed or problem
            self._stop.set()
            return State(execution=job.name, status=Status.INTERRUPTED)
        except GyreError as problem:
            return problem
        except Exception as problem:
            return fault(problem, job, assignment.options, self._record)

    def _run(self, job: Job, assignment: Assignment) -> State:
        """With what an earlier run has done of it, and again where it is to be run again."""
        folder = assignment.options.runs / job.name
        earlier = states.load(folder)
        if earlier is not None and not is_open(earlier) and not self._may_retry(earlier):
            with full_is_told():
                deliver(folder, earlier, self._record)
            return earlier
        while True:
            state = self._tried(job, assignment)
            if not self._may_retry(state) or self._stop.wait(_RETRY_S):
                return state
            log.warning("`%s` is run again: %s", job.name, state.reason)

    def _may_retry(self, state: State) -> bool:
        return state.status is Status.DONE and state.lost and state.retried < self._retries

    def _tried(self, job: Job, assignment: Assignment) -> State:
        """One attempt. A proxy that is gone for a while is waited for.

        Raises:
            UpstreamError: it does not come back, or refuses.
            RoomError: the disk is full.
            GyreError: as `run_execution`.
        """
        end = time.monotonic() + self._patience_s
        while True:
            if self._stop.is_set():
                return State(execution=job.name, status=Status.INTERRUPTED)
            try:
                return self._with_room(job, assignment.options)
            except UpstreamError as problem:
                if isinstance(problem, RefusedError) or time.monotonic() >= end:
                    raise
            self._stop.wait(_PAUSE_S)

    def _with_room(self, job: Job, options: Options) -> State:
        folders = [options.runs, Path(tempfile.gettempdir())]
        require_room(*folders)
        try:
            state = run_execution(job, options, self._record, self._stop)
            require_room(*folders)
        except RoomError:
            # Whoever found it out: its harness may have worked without room before.
            _void(options.runs / job.name)
            raise
        return state


def _void(folder: Path) -> None:
    """Where not even that can be written, nothing is left of it."""
    try:
        states.void(folder)
    except OSError:
        remove_tree(folder)
