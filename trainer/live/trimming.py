"""What executions leave takes room: of those that were trained a while ago only what is small stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gyre.trainer.live.jobs import Jobs
from gyre.trainer.rollout.place import bytes_below
from gyre.trainer.rollout.state import FILE
from gyre.trainer.rollout.tree import remove_tree

SMALL = 64 << 10
"""Bytes of a file, or of all that a scorer said."""
_ATTEMPT = re.compile(r"attempt-\d+")


@dataclass(slots=True)
class Trimming:
    """Beside the work of the run. What could not be removed, or was broken off, is tried by the next run."""

    jobs: Jobs
    whole: int
    """Groups that were trained last and keep all that they have."""
    warn: Callable[[str], None] = lambda _: None
    _seen: int = 0
    _waiting: list[int] = field(default_factory=list)
    _trained: list[int] = field(default_factory=list)
    """Groups that are whole, in the order of their training."""
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "trimming"))

    def __enter__(self) -> Trimming:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.shutdown(cancel_futures=error is not None)

    def published(self, dispatched: int, waiting: Collection[int]) -> None:
        """After a checkpoint: groups below `dispatched` that do not wait are not needed any more."""
        known = [*self._waiting, *range(self._seen, dispatched)]
        self._seen, self._waiting = dispatched, [index for index in known if index in waiting]
        self._trained += [index for index in known if index not in waiting]
        old = self._trained[: max(0, len(self._trained) - self.whole)]
        del self._trained[: len(old)]
        if old:
            self._worker.submit(self._trim, old)

    def _trim(self, groups: Iterable[int]) -> None:
        for index in groups:
            group = self.jobs.group(index, burst=0, version="")
            for job in self.jobs.of_group(group).jobs:
                folder = self.jobs.options.runs / job.name
                try:
                    trim(folder)
                except OSError as problem:
                    self.warn(f"`{folder}` takes room that could not be freed: {problem}")
                    return


def trim(folder: Path) -> None:
    """Leaves `execution.json` and small outputs. May be done again.

    Raises:
        OSError: something cannot be removed.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _ATTEMPT.fullmatch(path.name):
            trim(path)
        elif not _stays(path):
            remove_tree(path)


def _stays(path: Path) -> bool:
    if path.name == FILE:
        return True
    if path.is_dir() and not path.is_symlink():
        return path.name == "scorer" and bytes_below(path) <= SMALL
    return path.lstat().st_size <= SMALL
