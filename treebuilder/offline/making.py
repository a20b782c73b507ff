"""One part of a build: rows of the log in, row groups of trees out. Runs in any process.

What has not changed since the last build is copied from the part that has it; everything else is built
anew. An execution that cannot be built becomes a row that says why, and stops nothing.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.findings import Finding
from gyre.proxy.log.reading.pending import Pending
from gyre.proxy.log.reading.read import Log
from gyre.proxy.log.reading.sealed import Sealed
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.errors import ExecutionError, TreeError, fault_of
from gyre.treebuilder.offline.parts import Part
from gyre.treebuilder.offline.source import Source
from gyre.treebuilder.offline.survey import Found
from gyre.treebuilder.offline.text_tokens import TextCounter
from gyre.treebuilder.options import Options
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.store.encode import Built, Tables, joined, tables_of
from gyre.treebuilder.store.folder import TreesFolder
from gyre.treebuilder.store.read import pieces_of
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import Confidence, ExecutionTree

Done = Callable[[str], None]
"""Told the name of each execution that is done."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The files and journal rows of a snapshot that have rows of some executions."""

    sealed: Sealed
    pending: Pending
    names: int
    """Executions with calls in the whole log: nothing is filtered where all of them are wanted."""

    def open(self, names: set[str], findings: list[Finding]) -> Source:
        only = None if len(names) == self.names else names
        return Source(self.sealed, self.pending, only, findings)


class Slicer:
    """Cuts a snapshot so that a process is only given what it needs."""

    def __init__(self, log: Log, found: Iterable[Found]) -> None:
        self._log = log
        self._files: dict[str, set[int]] = {}
        for one in found:
            if one.calls:
                self._files.setdefault(one.key[0], set()).update(one.files)

    def cut(self, part: Part) -> LogSlice:
        log = self._log
        names = {one.key[0] for one in part.executions}
        files = sorted({file for name in names for file in self._files.get(name, ())})
        calls = [record for record in log.pending.calls if record.identity.execution_id in names]
        return LogSlice(
            sealed=replace(
                log.sealed, calls=[log.sealed.calls[file] for file in files], executions=[], problems=[]
            ),
            pending=replace(log.pending, calls=calls, executions=[], problems=[]),
            names=len(self._files),
        )


@dataclass(frozen=True, slots=True)
class Task:
    """Values only: it may be sent to another process."""

    part: Part
    log: LogSlice
    options: Options
    strict: bool
    tokenizer: Path | None
    folder: TreesFolder
    kept: dict[AttemptKey, str]
    """Attempts that have not changed, each with the part that has them."""
    sums: dict[str, dict[str, str]]
    """Checksums of such parts' files, where they are known."""
    key: str
    """Of the build; see `standing.build_key`."""


class Maker:
    """Carries out a task, a row group in memory at a time beside the rows of the log."""

    def __init__(self, task: Task, done: Done | None = None) -> None:
        self.digests: list[str] = []
        """What each execution was built from, in order."""
        self.built = 0
        self.findings: list[Finding] = []
        """What reading the log had to tell."""
        self._task = task
        self._done = done
        self._kept = task.kept
        self._copies: dict[str, dict[AttemptKey, Tables]] = {}
        self._opened: Source | None = None
        self._counter = TextCounter(task.tokenizer) if task.tokenizer else None

    def groups(self) -> Iterator[Tables]:
        for group in self._task.part.groups:
            yield self._group(group)

    def _group(self, group: tuple[Found, ...]) -> Tables:
        pieces: list[Tables] = []
        built: list[Built] = []
        for one in group:
            copy = self._copy(one)
            if copy is None:
                built.append(self._build(one))
                self.built += 1
            else:
                pieces += [tables_of(built), copy]
                built = []
            self.digests.append(one.digest if copy else built[-1].summary.log_digest)
            if self._done:
                self._done(one.key[0])
        return joined([*pieces, tables_of(built)])

    def _copy(self, one: Found) -> Tables | None:
        part = self._kept.get(one.key)
        if part is None:
            return None
        if part not in self._copies:
            try:
                # One old part at a time: executions hardly ever change their order.
                self._copies = {part: pieces_of(self._task.folder, part, self._task.sums.get(part, {}))}
            except TreeError:
                # It was damaged after it was written; the log still has everything.
                self._kept = {key: name for key, name in self._kept.items() if name != part}
                self._opened = None
                return None
        return self._copies[part][one.key]

    def _build(self, one: Found) -> Built:
        try:
            return self._built(one)
        except (ExecutionError, CorruptLogError) as problem:
            return self._skipped(one, problem)
        except Exception as problem:
            return self._skipped(one, fault_of(problem, one.key[0]))

    def _skipped(self, one: Found, problem: ExecutionError | CorruptLogError) -> Built:
        if self._task.strict:
            raise ExecutionError(f"execution `{one.key[0]}`: {problem.message}") from problem
        summary = _summary(one)
        summary.skipped, summary.log_digest = problem.message, ""
        return Built(summary, None)

    def _built(self, one: Found) -> Built:
        if one.damaged:
            raise ExecutionError(one.damaged)
        summary = _summary(one)
        if not one.calls:
            return Built(summary, None)
        bodies = self._source.bodies
        calls, problems = self._source.calls(one.key, one.facts.evaluation)
        builder = Builder(*one.key, bodies=bodies)
        for call in calls:
            builder.add(call)
        tree = builder.tree(self._task.options)
        tree.problems = [*problems, *tree.problems]
        _sum_up(summary, tree)
        counts = self._counter.nodes(tree, calls, bodies) if self._counter and not tree.exact else None
        return Built(summary, tree, counts)

    @property
    def _source(self) -> Source:
        """Opened only where something has to be built."""
        if self._opened is None:
            wanted = [one for one in self._task.part.executions if one.calls and one.key not in self._kept]
            names = {one.key[0] for one in wanted if not one.damaged}
            self._opened = self._task.log.open(names, self.findings)
        return self._opened


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Rows and trees live as long as their part: looking for garbage among them all the time finds none."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _summary(one: Found) -> ExecutionSummary:
    facts = one.facts
    return ExecutionSummary(
        execution_id=one.key[0],
        execution_attempt=one.key[1],
        superseded=one.superseded,
        task=facts.task,
        group=facts.group,
        outcome=facts.outcome,
        score=facts.score,
        reason=facts.reason,
        artifact=facts.artifact,
        evaluation=facts.evaluation,
        calls=one.calls,
        log_digest=one.digest,
    )


def _sum_up(summary: ExecutionSummary, tree: ExecutionTree) -> None:
    summary.exact = tree.exact
    summary.calls = len(tree.links)
    summary.contexts = len({link.context_id for link in tree.links})
    summary.prompt_tokens = sum(link.prompt_tokens for link in tree.links)
    summary.tree_tokens = sum(len(node.token_ids) for node in tree.nodes)
    summary.sampled_tokens = tree.sampled_tokens
    summary.targets, summary.kept_targets = tree.targets, tree.kept_targets
    summary.trajectories = len({path.slot for path in tree.trajectories})
    summary.quarantined = sum(link.confidence == Confidence.QUARANTINED for link in tree.links)
    summary.left_out, summary.untrained = tree.left_out, tree.untrained
    summary.causes = Counter(link.cause.value for link in tree.links)
    summary.problems = tree.problems
