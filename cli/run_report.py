"""What `gyre run` says: of each execution that ends, and at the end."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gyre.cli import output
from gyre.proxy.errors import GyreError
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.rollout.state import State, Status

SCHEMA = 1
_BAD = (ExecutionOutcome.FAILED, ExecutionOutcome.SCORER_FAILED)
_SHOWN = (
    *("execution", "task", "group", "attempt", "harness", "status", "outcome", "score", "reason"),
    *("seconds", "workspace", "stdout", "stderr", "details"),
)


@contextmanager
def told() -> Iterator[Callable[[State, int, int], None]]:
    """Give a function that is called with each execution that ended, how many have, and of how many."""
    with output.counting("executions") as count:

        def tell(state: State, done: int, total: int) -> None:
            output.say(f"[{done:,}/{total:,}] {line_of(state)}")
            count(done, total)

        yield tell


def line_of(state: State) -> str:
    said = [state.outcome if state.status is not Status.INTERRUPTED else "interrupted"]
    said += [f"score {state.score:g}"] if state.score is not None else []
    said += [f"{state.seconds:.1f} s"] if state.seconds else []
    return f"{state.execution}: {', '.join(said)}" + (f" ({state.reason})" if state.reason else "")


def print_states(states: Sequence[State], problems: Sequence[GyreError], *, json: bool) -> None:
    """Execution by execution."""
    if json:
        told = [{"message": problem.message, "hint": problem.hint} for problem in problems]
        output.print_json(
            {"schema": SCHEMA, "executions": [_document(one) for one in states], "problems": told}
        )
        return
    rows = [(one.execution, str(one.outcome), one.score, one.seconds, one.workspace) for one in states]
    output.print_table("", ("execution", "outcome", "score", "seconds", "workspace"), rows)
    for state in states:
        if state.outcome in _BAD:
            output.print_error(GyreError(f"`{state.execution}`: {state.reason}", state.hint))
        elif state.reason:
            output.say(f"{state.execution}: {state.reason}")
    _remind(states)


def _document(state: State) -> dict[str, Any]:
    document: dict[str, Any] = {name: getattr(state, name) for name in _SHOWN}
    return document | {"recorded": not state.unrecorded}


def print_groups(states: Sequence[State]) -> None:
    """A line per group."""
    outcomes = [one for one in ExecutionOutcome if any(state.outcome is one for state in states)]
    rows = []
    for group in dict.fromkeys(state.group for state in states):
        members = [state for state in states if state.group == group]
        counts = [sum(one.outcome is outcome for one in members) for outcome in outcomes]
        scores = [one.score for one in members if one.score is not None]
        mean = statistics.fmean(scores) if scores else None
        seconds = statistics.median(one.seconds for one in members)
        rows.append((group, len(members), *counts, mean, seconds))
    names = ("group", "executions", *(str(one) for one in outcomes), "mean score", "median s")
    output.print_table("", names, rows)
    for reason, hint in dict.fromkeys((state.reason, state.hint) for state in states if state.hint):
        output.print_error(GyreError(reason, hint))
    _remind(states)


def _remind(states: Sequence[State]) -> None:
    if any(state.unrecorded for state in states):
        output.say("start the run again to bring into the log what is missing there")


def exit_code(states: Sequence[State]) -> int:
    """1 when an execution did not run, could not be scored or is not in the log."""
    bad = [
        state
        for state in states
        if not (state.ran or state.status is Status.INTERRUPTED)
        or state.outcome is ExecutionOutcome.SCORER_FAILED
        or state.unrecorded
    ]
    return 1 if bad else 0
