"""Executions that are waited for together: a group to be trained, or an evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gyre.proxy.errors import GyreError
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.state import State
from gyre.trainer.rollout.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What is to be run. Its jobs begin in their order."""

    key: str
    """As a group is called in the log, `g000012`; an evaluation `eval-000003` or `eval-000003-greedy`."""
    jobs: Sequence[Job]
    options: Options
    urgent: bool = False
    """Before whatever is not and has not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What became of it: every execution has come to its end."""

    key: str
    states: Sequence[State] = ()
    """In the order of the jobs; without those in `failures`."""
    failures: Sequence[tuple[Job, GyreError]] = ()
    """Executions that could not even be tried."""
    at: float = field(default_factory=time.monotonic, compare=False)
    """When."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group to be trained, as it was dispatched."""

    index: int
    task: Task
    burst: int
    """At its dispatch."""
    version: str
    """That the engines served at its dispatch."""
    size: int
    """Executions."""

    @property
    def key(self) -> str:
        return group_key(self.index)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Of executions, for who watches."""

    running: int = 0
    waiting: int = 0
    """Dispatched and not begun."""
    done: int = 0
    timed_out: int = 0
    """Of those that are done."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Of those that are done, by outcome."""


def group_key(index: int) -> str:
    return f"g{index:06d}"
