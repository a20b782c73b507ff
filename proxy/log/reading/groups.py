"""A log larger than memory, in parts of whole executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.read import Log, read_log
from gyre.proxy.log.reading.sealed import SealedFile, corrupt

GROUP_BYTES = 128 << 20


def read_groups(path: str | Path, *, most_bytes: int = GROUP_BYTES) -> Iterator[Log]:
    """The log as one snapshot, by first row of each execution, in parts of about `most_bytes` of calls.

    Rows that are not sealed yet stay in memory; a running proxy bounds them by sealing.
    """
    yield from groups_of(read_log(path), most_bytes)


def groups_of(log: Log, most_bytes: int = GROUP_BYTES, columns: Sequence[str] | None = None) -> Iterator[Log]:
    names: list[str] = []
    size = 0.0
    for name, weight in _weights(log).items():
        if names and size + weight > most_bytes:
            yield _part(log, names, columns)
            names, size = [], 0.0
        names.append(name)
        size += weight
    if names:
        yield _part(log, names, columns)


def _part(log: Log, names: list[str], columns: Sequence[str] | None) -> Log:
    only = frozenset(names)
    pending = replace(
        log.pending,
        calls=[record for record in log.pending.calls if record.identity.execution_id in only],
        executions=[record for record in log.pending.executions if record.execution_id in only],
        problems=[],
    )
    return Log(log.folder, replace(log.sealed, problems=[]), pending, only, columns)


def _weights(log: Log) -> Counter[str]:
    """Estimated bytes of every execution's rows, in order of first appearance."""
    weights: Counter[str] = Counter()
    for file in log.sealed.calls:
        try:
            _weigh(file, weights)
        except (OSError, pa.ArrowException) as problem:
            log.problems.append(corrupt(file.path, problem))
    for record in log.pending.calls:
        weights[record.identity.execution_id] += 0
    return weights


def _weigh(file: SealedFile, weights: Counter[str]) -> None:
    with pq.ParquetFile(file.path) as parquet:
        for i in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(i)
            each = group.total_byte_size // max(1, group.num_rows)
            for name in values_of(parquet.read_row_group(i, ["execution_id"])["execution_id"]):
                weights[name] += each
