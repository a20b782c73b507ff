"""What is known of one execution between two runs of gyre: `execution.json` in its folder.

A run that was interrupted is found here and goes on where it stopped. Events for the log stand here
until they are in it.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from gyre.proxy.errors import GyreError
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome

FILE = "execution.json"
SCHEMA = 1


class StateError(GyreError, ValueError):
    """A file of an earlier run cannot be used; the message names it."""


class Status(StrEnum):
    """How far an execution came."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    """The run ended before it did."""
    NOT_STARTED = "not_started"
    """Its harness could not be started."""
    UNSCORED = "unscored"
    """It ended; its scorer has not."""
    DONE = "done"


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that the log shall say of an execution."""

    event: ExecutionEvent
    attempt: int
    outcome: ExecutionOutcome | None = None
    score: float | None = None
    artifact: str | None = None
    reason: str | None = None
    details: dict[str, Any] | None = None


class State(msgspec.Struct, kw_only=True):
    """One execution; its last try."""

    schema: int = SCHEMA
    execution: str
    task: str | None = None
    group: str | None = None
    harness: str = ""
    number: int = 0
    """Which try of this folder."""
    attempt: int = 0
    """Which attempt of the name it is in the log."""
    status: Status = Status.RUNNING
    outcome: ExecutionOutcome = ExecutionOutcome.OPEN
    ended: ExecutionOutcome = ExecutionOutcome.OPEN
    """The outcome by its end; what the scorer says outweighs it."""
    score: float | None = None
    reason: str = ""
    hint: str = ""
    """What to do about it."""
    seconds: float = 0.0
    ran: bool = False
    """Whether it got as far as a call that was answered, or its limit."""
    lost: bool = False
    """Whether it failed for want of an engine or the proxy: it is not scored, and may be run again."""
    retried: int = 0
    """How often it was run again for that."""
    workspace: str = ""
    stdout: str = ""
    stderr: str = ""
    temporary: str = ""
    """Its TMPDIR, which is removed at its end."""
    details: dict[str, Any] = {}
    unrecorded: list[Event] = []
    """Not in the log yet."""


def load(folder: Path) -> State | None:
    """The state that an earlier run left in `folder`.

    Raises:
        StateError: it is damaged, or a newer gyre wrote it.
    """
    path = folder / FILE
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as problem:
        raise StateError(f"`{path}` is damaged: {problem}", "remove its folder to run it anew") from None
    if state.schema > SCHEMA:
        raise StateError(f"`{path}` was written by a newer gyre", "use a newer gyre: pip install -U gyre-rl")
    return state


def save(folder: Path, state: State) -> None:
    """Write it at once and whole."""
    folder.mkdir(parents=True, exist_ok=True)  # a harness may remove whatever it likes
    temporary = folder / f".{FILE}"
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / FILE)


def void(folder: Path) -> None:
    """What it did is not to be trained, through no fault of its own: the next run makes a new attempt."""
    state = load(folder)
    if state is not None and state.status is not Status.RUNNING:
        state.status = Status.INTERRUPTED
        save(folder, state)
