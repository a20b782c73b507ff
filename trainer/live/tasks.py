"""The tasks of a list, read and checked before anything starts."""

from __future__ import annotations

from pathlib import Path

from gyre.trainer.rollout.group import checked_task
from gyre.trainer.rollout.job import Options
from gyre.trainer.rollout.task import Task, TaskError, find_tasks

_SHOWN = 5


def tasks_in(folder: Path, options: Options) -> list[Task]:
    """All of them, by name.

    Raises:
        TaskError: some cannot be run here or have no scorer; it names them.
    """
    found: list[Task] = []
    broken: list[TaskError] = []
    for each in find_tasks(folder):
        try:
            found.append(checked_task(each, options))
        except TaskError as problem:
            broken.append(problem)
    if broken:
        raise _error(broken)
    return found


def _error(broken: list[TaskError]) -> TaskError:
    """One by itself; of several a line each."""
    if len(broken) == 1:
        return broken[0]
    lines = [f"  {problem.message}" for problem in broken[:_SHOWN]]
    more = len(broken) - len(lines)
    lines += [f"  and {more:,} more"] if more else []
    return TaskError("\n".join([f"{len(broken):,} tasks cannot be run:", *lines]), broken[0].hint)
