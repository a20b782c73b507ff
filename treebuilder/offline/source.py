"""Rows of a log as `Call` values, execution by execution; decides nothing about trees.

Ids and log-probabilities are views of the log's columns. A row whose parent belongs to another attempt
of the execution is given whole. What is wrong with one execution raises `ExecutionError` with the
call's name, and only where that execution is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from gyre.proxy.calls import CaptureQuality, LogprobQuality
from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.findings import Finding
from gyre.proxy.log.reading.pending import Pending
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.sealed import Sealed
from gyre.proxy.log.sealing.widen import calls_table
from gyre.treebuilder.call import Call, sampling
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.offline.bodies import Bodies
from gyre.treebuilder.offline.survey import CALL_WIRES, readable_groups
from gyre.treebuilder.proof.wholes import Array, Row, Spans, Wholes
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.trees import CallKey

_SKEW_NS = 1_000_000_000


_WHO = ("execution_id", "execution_attempt", "wire", "order", "worker")
COLUMNS = (*_WHO, *Row._fields)
_Placed = tuple[tuple[int, str, CallKey], int, Row]
"""Where a row stands in commit order, its attempt of the execution, the row."""


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
        self._rows: dict[str, list[_Placed]] = {}
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
        rows = sorted(self._rows.get(name, ()), key=itemgetter(0))
        reading = _Reading(Wholes(row for _, _, row in rows))
        for _, of, row in rows:
            if of == attempt:
                reading.add(row, evaluation)
        return reading.calls, reading.problems

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
        who = zip(*(values_of(table[column]) for column in _WHO), strict=True)
        rows = map(Row._make, zip(*(_values(table, column) for column in Row._fields), strict=True))
        for (execution, attempt, wire, order, worker), row in zip(who, rows, strict=True):
            if wire in CALL_WIRES:
                self._rows.setdefault(execution, []).append(((order, worker, row.key), attempt, row))


class _Reading:
    """One attempt while its rows are read."""

    def __init__(self, wholes: Wholes) -> None:
        self.calls: list[Call] = []
        self.problems: list[str] = []
        self._wholes = wholes
        self._known: dict[CallKey, tuple[Row, Call]] = {}

    def add(self, row: Row, evaluation: bool) -> None:
        key = row.key
        if key in self._known:
            if not _same(row, self._known[key][0]):
                raise _error(row, "is in the log twice, with different content")
            return
        _check_lengths(row)
        call = _call(key, row, evaluation)
        self._join(call, row)
        self._clocks(call, row)
        self._known[key] = row, call
        self.calls.append(call)

    def _join(self, call: Call, row: Row) -> None:
        """Refer to the parent where the builder has it by then; else make the call whole."""
        parent = row.parent
        if parent is None:
            if row.prompt_shared or row.messages_shared:
                raise _error(row, "shares with a parent and names none")
            return
        if parent in self._known:
            _check_shared(row, self._known[parent][0])
            call.parent = parent
            return
        try:
            call.suffix, call.messages = self._wholes.prompt(row), self._wholes.messages(row)
        except CorruptLogError as problem:
            raise ExecutionError(problem.message) from None
        call.shared = call.messages_shared = 0

    def _clocks(self, call: Call, row: Row) -> None:
        if 0 < call.ended_ns < call.started_ns:
            self.problems.append(f"call {name(call.key)} ended before it started")
        if call.parent is None:
            return
        theirs, parent = self._known[call.parent]
        goes_on = call.shared > (theirs.prompt_tokens or 0)
        if goes_on and call.started_ns < parent.started_ns - _SKEW_NS:
            text = f"call {name(call.key)} started before {name(parent.key)}, whose answer it goes on from"
            self.problems.append(text)


def name(key: CallKey) -> str:
    """A row as errors spell it."""
    first = (key.attempt, key.choice) == (0, 0)
    return f"`{key.call_id}`" if first else f"`{key.call_id}` (attempt {key.attempt}, choice {key.choice})"


def _call(key: CallKey, row: Row, evaluation: bool) -> Call:
    return Call(
        key=key,
        shared=row.prompt_shared,
        suffix=row.prompt_suffix_ids,
        prompt_digest=bytes.fromhex(row.prompt_digest) if row.prompt_digest else None,
        output=row.output_ids,
        # Fewer than ids: then it is not known which belongs to which.
        logprobs=row.output_logprobs if row.logprobs == row.outputs else None,
        version_spans=row.version_spans,
        messages_shared=row.messages_shared,
        messages=row.message_hashes or [],
        tools=tuple(row.tool_hashes or ()),
        request_digest=bytes.fromhex(row.request_digest or ""),
        response=row.response,
        started_ns=row.started_at * 1000,
        ended_ns=row.ended_at * 1000,
        outcome=row.outcome,
        finish_reason=row.finish_reason,
        temperature=row.temperature,
        sampling=sampling(
            row.top_p,
            row.top_k,
            row.min_p,
            row.presence_penalty,
            row.frequency_penalty,
            row.repetition_penalty,
        ),
        session_id=row.session_id,
        agent_id=row.agent_id,
        parent_agent_id=row.parent_agent_id,
        hints=_hints(row.lineage_hints),
        retry_count=row.retry_count,
        delivery_of=row.delivery_of,
        capture_quality=row.capture_quality or CaptureQuality.NONE.value,
        logprob_quality=row.logprob_quality or LogprobQuality.NONE.value,
        flags=tuple(row.capture_flags or ()),
        evaluation=evaluation,
    )


def _check_lengths(row: Row) -> None:
    suffix = row.prompt_suffix_ids
    if (suffix is None) != (row.prompt_tokens is None):
        raise _error(row, "has a prompt length without ids, or ids without a length")
    if suffix is not None and row.prompt_shared + len(suffix) != row.prompt_tokens:
        have = row.prompt_shared + len(suffix)
        raise _error(row, f"should have {row.prompt_tokens} prompt ids and has {have}")
    for _, start, end in row.version_spans:
        if not 0 <= start <= end <= row.outputs:
            raise _error(row, f"has a version span {start}-{end} over {row.outputs} output ids")
    if row.capture_quality == CaptureQuality.EXACT and (suffix is None or row.outputs != row.logprobs):
        counts = f"{row.outputs} output ids and {row.logprobs} log-probabilities"
        raise _error(row, f"claims exact capture with {counts if suffix is not None else 'no prompt ids'}")


def _check_shared(row: Row, theirs: Row) -> None:
    tokens = (theirs.prompt_tokens or 0) + theirs.outputs
    if not 0 <= row.prompt_shared <= tokens:
        raise _error(row, f"shares {row.prompt_shared} ids with {name(theirs.key)}, which has {tokens}")
    count = theirs.messages_shared + len(theirs.message_hashes or ())
    if not 0 <= row.messages_shared <= count:
        text = f"shares {row.messages_shared} messages with {name(theirs.key)}, which has {count}"
        raise _error(row, text)


def _same(one: Row, other: Row) -> bool:
    """Whether two rows with one key are one row that was written twice; a seal may change the parent."""
    alike = ("outcome", "prompt_tokens", "prompt_digest", "response", "response_digest", "capture_quality")
    if any(getattr(one, column) != getattr(other, column) for column in alike):
        return False
    pairs = ((one.output_ids, other.output_ids), (one.output_logprobs, other.output_logprobs))
    return all(
        (a is None) == (b is None) and (a is None or b is None or a.tobytes() == b.tobytes())
        for a, b in pairs
    )


def _error(row: Row, text: str) -> ExecutionError:
    return ExecutionError(f"call {name(row.key)} {text}")


def _hints(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        hints = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(hints, dict):
        return {}
    return {
        key: hint if isinstance(hint, str) else orjson.dumps(hint).decode() for key, hint in hints.items()
    }


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
