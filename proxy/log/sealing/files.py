"""The files of one seal while they are written, and the records that go into them in commit order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from gyre.proxy.calls import CallRecord, ExecutionRecord
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.reading.pending import SegmentState
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.sealing.parquet import SealedWriter
from gyre.proxy.log.sealing.widen import calls_table, executions_table, messages_table

ROW_GROUP_BYTES = 4 << 20
ROW_GROUP_ROWS = 8192


class _Rows:
    """Records of one table, written as a row group whenever enough have come together."""

    def __init__(self, writer: SealedWriter, widen: Callable[[Sequence[Any]], pa.Table]) -> None:
        self.writer = writer
        self._widen = widen
        self._waiting: list[Any] = []
        self._bytes = 0

    @property
    def rows(self) -> int:
        return self.writer.rows

    def add(self, record: object, size: int) -> None:
        self._waiting.append(record)
        self._bytes += size
        if self._bytes >= ROW_GROUP_BYTES or len(self._waiting) >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        self.writer.write(self._widen(self._waiting))
        self._waiting, self._bytes = [], 0


class SealedSet:
    """The three files of one seal. Left without `commit`, it leaves nothing behind."""

    def __init__(self, folder: Folder, identifier: str, segments: Sequence[str], known: set[bytes]) -> None:
        def rows(table: str, widen: Callable[[Sequence[Any]], pa.Table]) -> _Rows:
            path = folder.table(table) / f"{identifier}.parquet"
            return _Rows(SealedWriter(table, path, segments), widen)

        self.messages = rows("messages", messages_table)
        self.executions = rows("executions", executions_table)
        self.calls = rows("calls", calls_table)
        self.size = 0
        self._known = known
        self._tables = (self.messages, self.executions, self.calls)

    def add_call(self, record: CallRecord) -> None:
        for message in record.new_messages:
            if message.hash not in self._known:
                self._known.add(message.hash)
                self.messages.add(message, len(message.body))
        record.new_messages = []  # they would be held until the calls' row group is full
        self.calls.add(record, _size(record))

    def add_event(self, record: ExecutionRecord) -> None:
        self.executions.add(record, 256 + len(record.details or b""))

    def commit(self) -> None:
        """Make the files count; the calls file comes last, since it names the sealed segments."""
        for table in self._tables:
            table.flush()
            table.writer.finish()
        for table in self._tables:
            if table.rows or table is self.calls:
                table.writer.commit()
                self.size += table.writer.path.stat().st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for table in self._tables:
            table.writer.discard()


def in_commit_order(
    states: Sequence[SegmentState], more: Iterable[CallRecord]
) -> Iterator[CallRecord | ExecutionRecord]:
    """The rows of several segments as one sequence, a record in memory per segment."""
    streams = [_rows(state.path, state.sorted) for state in states]
    return heapq.merge(*streams, sorted(more, key=_commit_key), key=_commit_key)


def _rows(path: Path, is_sorted: bool) -> Iterator[CallRecord | ExecutionRecord]:
    rows = (record for record in scan(path, Damage()) if isinstance(record, CallRecord | ExecutionRecord))
    yield from rows if is_sorted else sorted(rows, key=_commit_key)


def _commit_key(record: CallRecord | ExecutionRecord) -> tuple[Any, ...]:
    if isinstance(record, CallRecord):
        return record.order, record.worker, record.call_id, record.attempt, record.choice
    return record.order, record.worker, "", 0, 0


def _size(record: CallRecord) -> int:
    parts = (record.request, record.raw_request, record.response, record.raw_response)
    raw_logprobs = record.own.raw_logprobs if record.own else None
    ids = (record.prompt_suffix, record.output, record.logprobs, raw_logprobs)
    return 1024 + sum(len(part) for part in (*parts, *ids) if part is not None)
