"""Rows of a log's files, execution by execution. Ids and log-probabilities are views of their columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gyre.proxy.log.findings import Finding
from gyre.proxy.log.reading.pending import Pending
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.sealed import Sealed
from gyre.proxy.log.sealing.widen import calls_table
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.offline.bodies import Bodies
from gyre.treebuilder.offline.calls import Placed, calls_of
from gyre.treebuilder.offline.survey import CALL_WIRES, readable_groups
from gyre.treebuilder.proof.wholes import Array, Row, Spans
from gyre.treebuilder.score import AttemptKey

_WHO = ("execution_id", "execution_attempt", "wire", "order", "worker")
COLUMNS = (*_WHO, *Row._fields)


class Source:
    """The rows of some executions; of all that have calls where `names` is None.

    Files are read by row group, so that a damaged page only costs the executions that have rows there.
    """

    def __init__(
        self, sealed: Sealed, pending: Pending, names: Collection[str] | None, findings: list[Finding]
    ) -> None:
        """What is damaged goes to `findings`, that of messages when they are asked for."""
        self._findings = findings
        self._lost: dict[str, str] = {}
        self._rows: dict[str, list[Placed]] = {}
        """By execution, whatever the attempt: rows of one may build on another's."""
        tables = list(self._tables(sealed, pending, names))
        self.bodies = Bodies(sealed.messages, pending.messages, tables, findings)
        for table in tables:
            self._take(table)

    def calls(self, key: AttemptKey, evaluation: bool = False) -> tuple[list[Call], list[str]]:
        """The calls of an attempt in commit order, and what is odd about them.

        Raises:
            ExecutionError: its rows contradict each other, lack something, or cannot be read.
        """
        name, attempt = key
        if name in self._lost:
            raise ExecutionError(self._lost[name])
        return calls_of(self._rows.get(name, ()), attempt, evaluation)

    def _tables(self, sealed: Sealed, pending: Pending, names: Collection[str] | None) -> Iterator[pa.Table]:
        wanted = None if names is None else pa.array(list(names), pa.string())
        for file in sealed.calls:
            for table in readable_groups(file, COLUMNS, self._findings, self._lost):
                mask = None if wanted is None else pc.is_in(table["execution_id"], value_set=wanted)
                if mask is None or pc.any(mask).as_py():
                    # What is wanted as a whole is not copied.
                    yield table if mask is None or pc.all(mask).as_py() else table.filter(mask)
        calls = [one for one in pending.calls if names is None or one.identity.execution_id in names]
        yield calls_table(calls).select(list(COLUMNS))

    def _take(self, table: pa.Table) -> None:
        for execution, placed in placed_rows(table):
            self._rows.setdefault(execution, []).append(placed)


def placed_rows(table: pa.Table) -> Iterator[tuple[str, Placed]]:
    """Rows of calls with their execution; `table` has `COLUMNS`."""
    who = zip(*(values_of(table[column]) for column in _WHO), strict=True)
    rows = map(Row._make, zip(*(_values(table, column) for column in Row._fields), strict=True))
    for (execution, attempt, wire, order, worker), row in zip(who, rows, strict=True):
        if wire in CALL_WIRES:
            yield execution, ((order, worker, row.key), attempt, row)


def _values(table: pa.Table, column: str) -> list[Any]:
    """A column of `Row` as its values."""
    values = table[column]
    match column:
        case "prompt_suffix_ids" | "output_ids" | "output_logprobs":
            return _views(values)
        case "version_spans":
            return _spans(values)
        case "response":
            return values_of(values.cast(pa.binary()))
        case "started_at" | "ended_at":
            return values_of(pc.fill_null(values.cast(pa.int64()), 0))
        case "prompt_shared" | "messages_shared":
            return values_of(pc.fill_null(values, 0))
    return values_of(values)


def _views(column: pa.ChunkedArray) -> list[Array | None]:
    """Rows of a list column as array views."""
    views: list[Array | None] = []
    for chunk in column.chunks:
        offsets = chunk.offsets.to_numpy().tolist()
        values = chunk.values.to_numpy(zero_copy_only=False)
        valid = chunk.is_valid().to_numpy(zero_copy_only=False).tolist()
        ranges = zip(pairwise(offsets), valid, strict=True)
        views += [values[start:end] if there else None for (start, end), there in ranges]
    return views


def _spans(column: pa.ChunkedArray) -> list[Spans]:
    """Rows of a list of (version, start, end); null is an empty list."""
    rows: list[Spans] = []
    for chunk in column.chunks:
        offsets = chunk.offsets.to_numpy().tolist()
        fields = (values_of(chunk.values.field(part)) for part in ("version", "start", "end"))
        spans = list(zip(*fields, strict=True))
        rows += [spans[start:end] for start, end in pairwise(offsets)]
    return rows
