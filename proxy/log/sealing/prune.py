"""Removing whole executions from a log, and messages that nobody refers to any more.

Only whole executions go, so no row loses its parent. Files are rewritten one by one and renamed into
place; a prune that is killed is finished by the next one. What a running proxy may still refer to
stays: its own executions, and the messages it believes to be in the log, unless it was told to
forget them (`forgetful`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gyre.proxy.calls import CallRecord, CloseRecord, Record
from gyre.proxy.errors import ConfigError, CorruptLogError
from gyre.proxy.log.findings import Severity
from gyre.proxy.log.folder import Folder, open_folder, sync_dir
from gyre.proxy.log.reading.pending import SegmentState, survey
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.sealed import SealedFile, list_sealed, projected, row_groups
from gyre.proxy.log.sealing.parquet import SealedWriter
from gyre.proxy.log.sealing.seal import seal_locked

Keep = Callable[[pa.Table], pa.ChunkedArray]
"""Which rows of a row group stay."""


@dataclass(slots=True)
class PruneReport:
    executions: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Asked for, but a running proxy may still add to them."""
    calls: int = 0
    events: int = 0
    messages: int = 0
    bytes_freed: int = 0
    """On a dry run an estimate, messages left out."""
    messages_kept: bool = False
    """A running proxy may refer to any message, so none was removed."""
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Running:
    """What live segments and their writers still use."""

    executions: set[str] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)
    hashes: set[str] = field(default_factory=set)

    def visit(self, record: Record, state: SegmentState) -> None:
        if isinstance(record, CallRecord):
            self.hashes.update(digest.hex() for digest in (*record.message_suffix, *record.tools))
        if not state.live:
            return
        self.workers.add(record.worker)
        if isinstance(record, CallRecord):
            self.executions.add(record.identity.execution_id)
        elif not isinstance(record, CloseRecord):
            self.executions.add(record.execution_id)


def prune(
    path: str | Path,
    *,
    before: datetime | None = None,
    executions: Collection[str] | None = None,
    dry_run: bool = False,
    forgetful: bool = False,
) -> PruneReport:
    """Remove executions whose last row is older than `before`, or those named, or named and older.

    Args:
        forgetful: a running proxy has just forgotten what it knows of the log.

    Raises:
        LogBusyError: another process seals or prunes.
        ConfigError: neither `before` nor `executions` is given.
    """
    if before is None and executions is None:
        raise ConfigError("nothing says what to prune", "give a time or names of executions")
    folder = open_folder(path)
    report = PruneReport(dry_run=dry_run)
    with folder.sealing():
        _require_whole(folder)
        if not dry_run:
            seal_locked(folder)
        try:
            _prune(folder, before, executions, forgetful, report)
        except pa.ArrowException as problem:
            raise CorruptLogError(f"`{folder.root}` cannot be pruned: {problem}") from problem
    return report


def _prune(
    folder: Folder,
    before: datetime | None,
    executions: Collection[str] | None,
    forgetful: bool,
    report: PruneReport,
) -> None:
    running = _Running()
    found = survey(folder.segments(), running.visit)
    _choose(folder, running, forgetful, before, executions, report)
    gone = pa.array(report.executions, pa.string())
    _drop(folder, "calls", gone, report)
    _drop(folder, "executions", gone, report)
    report.messages_kept = not forgetful and any(state.live for state in found.segments)
    if not report.dry_run and not report.messages_kept:
        _collect(folder, running.hashes, report)


def _require_whole(folder: Folder) -> None:
    """A file that cannot be read may refer to any message."""
    for problem in list_sealed(folder).problems:
        if problem.severity == Severity.ERROR:
            message = f"`{folder.root}` cannot be pruned: `{problem.where}` {problem.message}"
            raise CorruptLogError(message, "repair or remove that file first")


def _choose(
    folder: Folder,
    running: _Running,
    forgetful: bool,
    before: datetime | None,
    executions: Collection[str] | None,
    report: PruneReport,
) -> None:
    last, remembered = _last_seen(folder, running.workers)
    busy = running.executions if forgetful else running.executions | remembered
    for name, seen in sorted(last.items()):
        if (executions is None or name in executions) and (before is None or seen < before):
            (report.kept if name in busy else report.executions).append(name)


def _last_seen(folder: Folder, workers: set[str]) -> tuple[dict[str, datetime], set[str]]:
    """When each execution last did something, and which of them a live worker has written."""
    last: dict[str, datetime] = {}
    remembered: set[str] = set()
    sealed = list_sealed(folder)
    for table, files, times in (
        ("calls", sealed.calls, ("started_at", "ended_at")),
        ("executions", sealed.executions, ("at",)),
    ):
        schema = projected(table, ["execution_id", "worker", *times])
        for file in files:
            for group in row_groups(file, schema):
                for row in group.to_pylist():
                    name = row["execution_id"]
                    seen = [row[time] for time in times if row[time] is not None]
                    last[name] = max([*seen, *([last[name]] if name in last else [])])
                    if row["worker"] in workers:
                        remembered.add(name)
    return last, remembered


def _drop(folder: Folder, table: str, gone: pa.Array, report: PruneReport) -> None:
    def stays(rows: pa.Table) -> pa.ChunkedArray:
        return pc.invert(pc.is_in(rows["execution_id"], value_set=gone))

    sealed = list_sealed(folder)
    for file in sealed.calls if table == "calls" else sealed.executions:
        rows = _rewrite(table, file, stays, report)
        if table == "calls":
            report.calls += rows
        else:
            report.events += rows


def _collect(folder: Folder, referenced: set[str], report: PruneReport) -> None:
    """Remove messages that no row refers to."""
    sealed = list_sealed(folder)
    schema = projected("calls", ["message_hashes", "tool_hashes"])
    for file in sealed.calls:
        for group in row_groups(file, schema):
            for column in group.columns:
                referenced.update(values_of(pc.unique(pc.list_flatten(column))))
    wanted = pa.array(list(referenced), pa.string())

    def stays(rows: pa.Table) -> pa.ChunkedArray:
        return pc.is_in(rows["hash"], value_set=wanted)

    for file in sealed.messages:
        report.messages += _rewrite("messages", file, stays, report)


def _rewrite(table: str, file: SealedFile, stays: Keep, report: PruneReport) -> int:
    """Write a file again without some rows; returns how many went. Unknown columns are kept."""
    key = "hash" if table == "messages" else "execution_id"
    size = file.path.stat().st_size
    with pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
        total: int = parquet.metadata.num_rows
        left = sum(
            int(pc.sum(stays(parquet.read_row_group(i, [key]))).as_py() or 0)
            for i in range(parquet.num_row_groups)
        )
        if left == total:
            return 0
        if report.dry_run:
            report.bytes_freed += size * (total - left) // total
            return total - left
        if left:
            _write(table, file, parquet, stays)
        else:
            file.path.unlink()
            sync_dir(file.path.parent)
    report.bytes_freed += size - (file.path.stat().st_size if left else 0)
    return total - left


def _write(table: str, file: SealedFile, parquet: pq.ParquetFile, stays: Keep) -> None:
    writer = SealedWriter(table, file.path, file.segments, parquet.schema_arrow)
    try:
        for i in range(parquet.num_row_groups):
            rows = parquet.read_row_group(i)
            writer.write(rows.filter(stays(rows)))
        writer.finish()
        writer.commit()
    finally:
        writer.discard()
