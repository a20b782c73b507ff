"""Which tasks a run is of: their folders, and a digest of what is in each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import xxhash

from gyre.trainer.errors import TrainError
from gyre.trainer.live.jobs import Jobs
from gyre.trainer.rollout.task import Task, TaskError

_SHOWN = 5
_BLOCK = 1 << 20


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """By folder. For `run.json`."""

    trained: dict[str, str] = {}
    evaluated: dict[str, str] = {}
    """Of the episodes of an evaluation."""


def tasks_of(jobs: Jobs) -> Tasks:
    """Raises TaskError: a file of one cannot be read."""
    return Tasks(trained=_digests(jobs.tasks.values()), evaluated=_digests(jobs.evaluated))


def require_same_tasks(before: Tasks, now: Tasks, tell: Callable[[str], None]) -> None:
    """What a group's task is follows from the list, so that stays; what changed in a task is told.

    Raises:
        TrainError: other tasks are trained than before.
    """
    more, gone = sorted(now.trained.keys() - before.trained), sorted(before.trained.keys() - now.trained)
    if more or gone:
        said = [f"{word}: {_named(names)}" for word, names in (("new", more), ("gone", gone)) if names]
        raise TrainError(
            f"the run was started with other tasks; {'; '.join(said)}",
            "bring the folders of tasks back to what they were, or start a new run in another folder",
        )
    if changed := _changed(before.trained, now.trained):
        tell(f"tasks are not what they were when the run was started: {_named(changed)}")
    if others := _changed(before.evaluated, now.evaluated):
        text = "what is evaluated on is not what it was, and its scores do not compare with those before"
        tell(f"{text}: {_named(others)}")


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _named(folders: list[str]) -> str:
    shown = ", ".join(f"`{folder}`" for folder in folders[:_SHOWN])
    return f"{shown} and {len(folders) - _SHOWN:,} more" if len(folders) > _SHOWN else shown


def _digests(tasks: Iterable[Task]) -> dict[str, str]:
    return {str(folder): _digest(folder) for folder in sorted({task.folder for task in tasks})}


def _digest(folder: Path) -> str:
    """Of names and contents; of a link, of where it leads."""
    digest = xxhash.xxh3_128()
    try:
        for place, folders, names in os.walk(folder):
            folders.sort()
            for path in (Path(place, name) for name in sorted(names)):
                digest.update(os.fsencode(path.relative_to(folder)) + b"\0")
                _add(path, digest)
    except OSError as problem:
        raise TaskError(f"task `{folder}`: `{problem.filename}`: {problem.strerror}") from None
    return digest.hexdigest()


def _add(path: Path, digest: xxhash.xxh3_128) -> None:
    if path.is_symlink() or not path.is_file():
        digest.update(os.fsencode(os.readlink(path)) if path.is_symlink() else b"")
        return
    with path.open("rb") as file:
        digest.update(f"{os.fstat(file.fileno()).st_size} ".encode())
        while block := file.read(_BLOCK):
            digest.update(block)
