"""ENTRY of the online side: the log of a proxy that runs in, trees of executions that have ended out.

    with Online("logs", Options(cap=5)) as online:
        tree = online.tree("run-7")
        online.forget(["run-7"])

What is recorded is read once, and kept until its execution is forgotten. So a run costs what its log weighs,
however many executions it has. A tree is the one that `gyre-trees build` makes of that log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.reading.bodies import RecentBodies, find_bodies
from gyre.proxy.log.reading.read import read_log
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError, fault_of
from gyre.treebuilder.held import HeldRows
from gyre.treebuilder.offline.calls import calls_of
from gyre.treebuilder.offline.source import Source
from gyre.treebuilder.options import Options
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.trees import ExecutionTree


class Online:
    """One thread at a time."""

    def __init__(self, logs: str | Path, options: Options | None = None) -> None:
        """Raises LogFormatError: no log, or one of a newer format."""
        self.seconds = 0.0
        """Of the processor, for all that was done here."""
        self._options = options or Options()
        self._bodies = RecentBodies()
        with self._counted():
            self._rows = HeldRows(logs, self._bodies)

    def poll(self) -> None:
        """Take what was recorded since the last time. Costs little when that is nothing."""
        with self._counted():
            self._rows.poll()

    def tree(self, execution_id: str, attempt: int = 0) -> ExecutionTree:
        """The tree of all that is recorded of an attempt by now; an empty one where that is nothing.

        Raises:
            ExecutionError: its rows contradict each other, lack something, or cannot be read.
        """
        made = self.trees([(execution_id, attempt)])[execution_id, attempt]
        if isinstance(made, ExecutionError):
            raise made
        return made

    def trees(self, keys: Iterable[AttemptKey]) -> dict[AttemptKey, ExecutionTree | ExecutionError]:
        """Those of several attempts, each of which may fail alone."""
        wanted = list(keys)
        with self._counted():
            self._rows.poll()
            self._rows.load(name for name, _ in wanted)
            return {key: self._tree(key) for key in wanted}

    def is_evaluation(self, execution_id: str) -> bool:
        """Whether the log says so, as far as it was read."""
        return self._rows.is_evaluation(execution_id)

    def forget(self, names: Iterable[str]) -> None:
        """Let go of executions that are done with; asking for one again reads it from the whole log."""
        for name in names:
            self._rows.forget(name)

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tree(self, key: AttemptKey) -> ExecutionTree | ExecutionError:
        try:
            calls, problems, bodies = self._calls(key)
            if not calls:
                return ExecutionTree(*key, exact=True, nodes=[], links=[], trajectories=[])
            builder = Builder(*key, bodies=bodies)
            for call in calls:
                builder.add(call)
            tree = builder.tree(self._options)
        except ExecutionError as problem:
            return problem
        except CorruptLogError as problem:
            return ExecutionError(problem.message)
        except Exception as problem:
            return fault_of(problem, key[0])
        tree.problems = [*problems, *tree.problems]
        return tree

    def _calls(self, key: AttemptKey) -> tuple[list[Call], list[str], Mapping[str, bytes]]:
        name, attempt = key
        evaluation = self._rows.is_evaluation(name)
        if name in self._rows.forgotten:
            log = read_log(self._rows.folder.root, executions={name})
            source = Source(log.sealed, log.pending, {name}, [])
            return *source.calls(key, evaluation), source.bodies
        calls, problems = calls_of(self._rows.of(name), attempt, evaluation)
        return calls, problems, _Bodies(self._bodies, self._rows.folder, calls)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - start


class _Bodies(Mapping[str, bytes]):
    """Messages and tools of an attempt. What is not at hand is looked for when the first of it is wanted."""

    def __init__(self, recent: RecentBodies, folder: Folder, calls: list[Call]) -> None:
        self._recent = recent
        self._folder = folder
        self._calls = calls

    def __getitem__(self, address: str) -> bytes:
        """Raises ExecutionError for one that is missing: what it would have shown stays unknown."""
        body = self._recent.get(address)
        if body is None:
            body = self._others.get(address)
        if body is None:
            raise ExecutionError(f"its message `{address}` is not in the log")
        return body

    def __iter__(self) -> Iterator[str]:
        return iter({address for call in self._calls for address in (*call.messages, *call.tools)})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _others(self) -> dict[str, bytes]:
        return find_bodies(self._folder, [each for each in self if self._recent.get(each) is None])
