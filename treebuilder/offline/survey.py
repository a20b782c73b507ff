"""What a log has of each execution, from a pass over its small columns: who, how much, which rows.

Nothing is kept per row, so a log of any size can be surveyed. The digests do not depend on the order in
which rows are read, nor on whether they are sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gyre.proxy.log.findings import Finding
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.read import Log
from gyre.proxy.log.reading.sealed import SealedFile, conform, corrupt, projected
from gyre.proxy.log.sealing.widen import calls_table
from gyre.treebuilder.offline.facts import Facts, facts_of
from gyre.treebuilder.score import AttemptKey, Scores

CALL_WIRES = ("chat", "completions", "messages", "responses")
"""Rows of other wires generate nothing and are in no tree."""
_TEXT_ROW_BYTES = 4096
"""What the new messages of a call without ids weigh, roughly."""
_COLUMNS = (
    *("execution_id", "execution_attempt"),
    *("order", "worker", "call_id", "attempt", "choice", "outcome", "prompt_digest", "response_digest"),
    *("prompt_tokens", "prompt_shared", "usage_completion_tokens", "response_bytes", "wire"),
)
_MASK = (1 << 128) - 1


@dataclass(slots=True)
class Found:
    """One attempt of an execution, as the log has it."""

    key: AttemptKey
    first: tuple[int, str]
    """Commit order of its first row or event."""
    calls: int = 0
    new_bytes: int = 0
    """Of ids that its rows hold, prompt suffixes and outputs; of texts where there are no ids."""
    rows: int = 0
    """Sum of its rows' hashes."""
    files: set[int] = field(default_factory=set)
    """Which sealed files have rows of it."""
    damaged: str | None = None
    """Names a file in which rows of it cannot be read."""
    facts: Facts = field(default_factory=Facts)
    superseded: bool = False

    @property
    def digest(self) -> str:
        """Empty for what is damaged: it is to be tried again."""
        if self.damaged:
            return ""
        told = (self.key, self.calls, self.rows, self.facts, self.superseded)
        return xxhash.xxh3_128_hexdigest(repr(told).encode())


def survey(log: Log, scores: Scores) -> list[Found]:
    """Every attempt of every execution, by first appearance; damaged files go to `log.problems`."""
    found: dict[AttemptKey, Found] = {}
    lost: dict[str, str] = {}
    for number, file in enumerate(log.sealed.calls):
        for table in readable_groups(file, _COLUMNS, log.problems, lost):
            _add(table, number, found)
    _add(calls_table(log.pending.calls), None, found)
    events: list[dict[str, Any]] = log.executions.to_pylist()
    for event in events:
        _appear(found, event)
    for name in lost.keys() - {name for name, _ in found}:
        found[name, 0] = Found((name, 0), (0, ""))
    for one in found.values():
        one.damaged = lost.get(one.key[0])
    _supersede(found)
    facts = facts_of(events, found, scores)
    for key, one in found.items():
        one.facts = facts[key]
    return sorted(found.values(), key=lambda one: (one.first, one.key))


def readable_groups(
    file: SealedFile, columns: Sequence[str], problems: list[Finding], lost: dict[str, str]
) -> Iterator[pa.Table]:
    """A file's row groups one by one; of a damaged one the executions in it go to `lost`, with the reason."""
    schema = projected("calls", columns)
    with pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
        known = [name for name in schema.names if name in parquet.schema_arrow.names]
        for group in range(parquet.num_row_groups):
            try:
                table = parquet.read_row_group(group, known, use_threads=False)
                table = table if table.schema.equals(schema) else conform(table, schema)
            except (OSError, pa.ArrowException) as problem:
                problems.append(corrupt(file.path, problem))
                for name in _whose(parquet, group):
                    lost.setdefault(name, f"rows of it in `{file.path}` cannot be read")
            else:
                yield table


def _whose(parquet: pq.ParquetFile, group: int) -> set[str]:
    """Nobody's, when the names cannot be read either: then only the finding tells of it."""
    try:
        return set(values_of(parquet.read_row_group(group, ["execution_id"])["execution_id"]))
    except (OSError, pa.ArrowException):
        return set()


def _add(table: pa.Table, file: int | None, found: dict[AttemptKey, Found]) -> None:
    columns = [values_of(table[name]) for name in _COLUMNS]
    for row in zip(*columns, strict=True):
        key, told, (tokens, shared, output, answer, wire) = row[:2], row[2:11], row[10:]
        if wire not in CALL_WIRES:
            continue
        one = found.get(key)
        if one is None:
            one = found[key] = Found(key, told[:2])
        elif told[:2] < one.first:
            one.first = told[:2]
        one.calls += 1
        one.rows = one.rows + xxhash.xxh3_128_intdigest(repr(told).encode()) & _MASK
        one.new_bytes += _weight(tokens, shared or 0, output, answer or 0)
        if file is not None:
            one.files.add(file)


def _weight(prompt: int | None, shared: int, output: int | None, answer: int) -> int:
    """Bytes of the ids that a row holds, by the engine's count; of its answer where it did not count."""
    if prompt is None:
        return _TEXT_ROW_BYTES + answer
    return 4 * max(0, prompt - shared) + (answer if output is None else 4 * output)


def _appear(found: dict[AttemptKey, Found], event: dict[str, Any]) -> None:
    key, at = (event["execution_id"], event["execution_attempt"]), (event["order"], event["worker"])
    one = found.setdefault(key, Found(key, at))
    one.first = min(one.first, at)


def _supersede(found: dict[AttemptKey, Found]) -> None:
    last: dict[str, int] = {}
    for name, attempt in found:
        last[name] = max(attempt, last.get(name, 0))
    for (name, attempt), one in found.items():
        one.superseded = attempt < last[name]
