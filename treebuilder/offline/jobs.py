"""The tasks of a build, in this process or in several; the same bytes either way.

With as many parts as processes each process writes whole parts. With fewer the row groups of a part are
made by several, and this process writes them in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from threading import Thread

from gyre.proxy.log.findings import Finding
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.offline.making import Done, Maker, Task, collecting_rarely
from gyre.treebuilder.offline.parts import shares
from gyre.treebuilder.offline.standing import part_digest
from gyre.treebuilder.store.encode import Tables
from gyre.treebuilder.store.folder import PartEntry
from gyre.treebuilder.store.write import PartWriter


@dataclass(frozen=True, slots=True)
class Written:
    """A part that is on the disk under its temporary names."""

    entry: PartEntry
    built: int
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Share:
    """Row groups of a part that another process made."""

    groups: list[Tables]
    digests: list[str]
    built: int
    findings: list[Finding]


def carry_out(tasks: Sequence[Task], jobs: int, done: Done) -> Iterator[Written]:
    """Parts as they are written.

    Raises:
        TreeError: the folder cannot be written, or a process died.
        ExecutionError: a strict task met an execution that cannot be rebuilt.
    """
    if jobs == 1 or not tasks:
        for task in tasks:
            yield write_part(task, done)
        return
    with _pool(jobs) as pool:
        yield from (_parts if len(tasks) >= jobs else _shared)(pool, tasks, jobs, done)


@collecting_rarely()
def write_part(task: Task, done: Done | None = None) -> Written:
    maker = Maker(task, done)
    with PartWriter(task.folder, task.part.name) as writer:
        for tables in maker.groups():
            writer.write(tables)
        entry = writer.finish(part_digest(task.key, task.part, maker.digests))
    return Written(entry, maker.built, maker.findings)


@collecting_rarely()
def make_share(task: Task) -> Share:
    maker = Maker(task)
    groups = list(maker.groups())
    return Share(groups, maker.digests, maker.built, maker.findings)


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    # Forking a process with threads, as Arrow's are, may leave the child with a lock that nobody holds.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        yield pool
    except BrokenProcessPool as problem:
        hint = 'fewer jobs need less memory; a script needs `if __name__ == "__main__":` for more than one'
        raise TreeError("a process of the build died", hint) from problem
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A process of the pool does not notice that its build was killed: it would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        Thread(target=_outlive, args=(parent.join,), daemon=True).start()


def _outlive(join: Callable[[], None]) -> None:
    join()
    os._exit(1)


def _parts(pool: ProcessPoolExecutor, tasks: Sequence[Task], jobs: int, done: Done) -> Iterator[Written]:
    futures = {pool.submit(write_part, task): task for task in tasks}
    for future in as_completed(futures):
        yield future.result()
        _tell(futures[future], done)


def _shared(pool: ProcessPoolExecutor, tasks: Sequence[Task], jobs: int, done: Done) -> Iterator[Written]:
    each = -(-jobs // len(tasks))
    waiting = [[(share, pool.submit(make_share, share)) for share in _cut(task, each)] for task in tasks]
    for task, pieces in zip(tasks, waiting, strict=True):
        yield _put_together(task, pieces, done)


def _cut(task: Task, count: int) -> list[Task]:
    return [replace(task, part=share) for share in shares(task.part, count)]


def _put_together(task: Task, pieces: list[tuple[Task, Future[Share]]], done: Done) -> Written:
    digests: list[str] = []
    findings: list[Finding] = []
    built = 0
    with PartWriter(task.folder, task.part.name) as writer:
        for piece, future in pieces:
            share = future.result()
            for tables in share.groups:
                writer.write(tables)
            digests += share.digests
            findings += share.findings
            built += share.built
            _tell(piece, done)
        entry = writer.finish(part_digest(task.key, task.part, digests))
    return Written(entry, built, findings)


def _tell(task: Task, done: Done) -> None:
    for one in task.part.executions:
        done(one.key[0])
