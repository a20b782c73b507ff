"""Rows of a log that grows, by execution, from when they are recorded until nobody needs them any more.

Each row is read once. What was sealed before the start is only looked through for names, and read for those
that are asked for: after a restart most executions of a run are done with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from gyre.proxy.calls import CallRecord, ExecutionRecord
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.reading.bodies import RecentBodies
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.sealed import SealedFile, open_sealed, read_sealed
from gyre.proxy.log.reading.stream import LogStream
from gyre.proxy.log.sealing.widen import interrupted
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.offline.calls import Placed
from gyre.treebuilder.offline.records import placed_record
from gyre.treebuilder.offline.source import COLUMNS, placed_rows
from gyre.treebuilder.offline.survey import CALL_WIRES, readable_groups

_LOG = logging.getLogger(__name__)
_TOLD = ("execution_id", "execution_attempt", "order", "worker", "evaluation")


class HeldRows:
    """One thread at a time."""

    def __init__(self, logs: str | Path, bodies: RecentBodies) -> None:
        """Raises LogFormatError: no log, or one of a newer format."""
        self.forgotten: set[str] = set()
        """What is recorded of these is not kept."""
        self._stream = LogStream(logs)
        self._bodies = bodies
        self._rows: dict[str, list[Placed]] = {}
        """Whatever the attempt: rows of one may build on another's."""
        self._lost: dict[str, str] = {}
        """Executions with rows that cannot be read, and where."""
        self._evaluation: dict[str, tuple[tuple[int, int, str], bool]] = {}
        """What was said of an execution last, and when."""
        self._earlier: dict[str, list[SealedFile]] = {}
        """Files of before the start with rows of an execution that were not read yet."""
        for file in self._stream.before.calls:
            for name in _names_in(file):
                self._earlier.setdefault(name, []).append(file)
        self._events(self._stream.before.executions)

    @property
    def folder(self) -> Folder:
        return self._stream.folder

    def poll(self) -> None:
        """Take what was recorded since the last time."""
        news = self._stream.poll()
        for file in news.sealed:
            self._read(file, None)
            path = self.folder.table("executions") / file.path.name
            events = open_sealed(path, []) if path.exists() else None
            self._events([events] if events else [])
        for record in news.records:
            if isinstance(record, ExecutionRecord):
                at = record.execution_attempt, record.order, record.worker
                self._say(record.execution_id, at, record.evaluation)
            else:
                self._take(record)

    def load(self, names: Iterable[str]) -> None:
        """Read what files of before the start have of these executions, each file once."""
        wanted: dict[Path, tuple[SealedFile, set[str]]] = {}
        for name in names:
            for file in self._earlier.pop(name, ()):
                wanted.setdefault(file.path, (file, set()))[1].add(name)
        for file, those in wanted.values():
            self._read(file, those)

    def of(self, name: str) -> list[Placed]:
        """Rows of all attempts of an execution that was loaded; those that its proxy died over too.

        Raises:
            ExecutionError: some of them cannot be read.
        """
        if name in self._lost:
            raise ExecutionError(self._lost[name])
        rows = self._rows.get(name, [])
        known = {(row.call_id, row.attempt) for _, _, row in rows}
        lost = [each for each in self._stream.lost(name) if (each.call_id, each.attempt) not in known]
        return [*rows, *(placed_record(interrupted(each)) for each in lost if each.wire in CALL_WIRES)]

    def is_evaluation(self, name: str) -> bool:
        return name in self._evaluation and self._evaluation[name][1]

    def forget(self, name: str) -> None:
        self.forgotten.add(name)
        self._rows.pop(name, None)
        self._earlier.pop(name, None)
        self._lost.pop(name, None)
        self._stream.forget(name)

    def close(self) -> None:
        self._stream.close()

    def _take(self, record: CallRecord) -> None:
        # Whoever wrote a message first, others refer to it.
        self._bodies.add(record.new_messages)
        name = record.identity.execution_id
        if record.wire not in CALL_WIRES or name in self.forgotten:
            return
        placed = placed_record(record)
        self._bodies.touch(placed[2].message_hashes)
        self._bodies.touch(placed[2].tool_hashes)
        self._rows.setdefault(name, []).append(placed)

    def _read(self, file: SealedFile, names: set[str] | None) -> None:
        """Rows of a file, of these executions or of all."""
        lost: dict[str, str] = {}
        try:
            for table in readable_groups(file, COLUMNS, [], lost):
                for name, placed in placed_rows(table if names is None else _only(table, names)):
                    if name not in self.forgotten:
                        self._rows.setdefault(name, []).append(placed)
        except (OSError, pa.ArrowException) as problem:
            _LOG.warning("`%s` cannot be read: %s", file.path, problem)
            lost |= dict.fromkeys(names or (), f"`{file.path}` cannot be read")
        self._lost |= {name: why for name, why in lost.items() if names is None or name in names}

    def _events(self, files: list[SealedFile]) -> None:
        table = read_sealed("executions", files, [], _TOLD)
        for name, attempt, order, worker, evaluation in zip(
            *(values_of(table[column]) for column in _TOLD), strict=True
        ):
            self._say(name, (attempt, order, worker), evaluation)

    def _say(self, name: str, at: tuple[int, int, str], evaluation: bool | None) -> None:
        if evaluation is None or (name in self._evaluation and at < self._evaluation[name][0]):
            return
        self._evaluation[name] = at, evaluation
        if evaluation:
            # Never trained, so nobody asks for its tree.
            self.forget(name)


def _names_in(file: SealedFile) -> set[str]:
    """Executions with rows in it; nobody's, when they cannot be read."""
    try:
        return set(values_of(pc.unique(read_sealed("calls", [file], [], ["execution_id"])["execution_id"])))
    except (OSError, pa.ArrowException):
        return set()


def _only(table: pa.Table, names: set[str]) -> pa.Table:
    return table.filter(pc.is_in(table["execution_id"], value_set=pa.array(list(names), pa.string())))
