"""Rows that are in the log twice: a write that seemed to fail is written again.

Exact repetitions count once. A row with the same key and another content is kept, and `check`
reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xxhash

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.reading.sealed import SealedFile, read_sealed
from gyre.proxy.log.schema import ROW_KEY
from gyre.proxy.log.sealing.widen import RowKey, row_key

Signature = tuple[object, ...]
Row = dict[str, Any]

_PLAIN = ("execution_id", "outcome", "http_status", "response", "prompt_tokens")
_DIGESTS = ("request_digest", "response_digest", "prompt_digest")
SIGNED = (*ROW_KEY, *_PLAIN, *_DIGESTS, "output_ids")
"""Columns that say whether two rows with one key are the same row; a seal may change the parent."""


class Twins:
    """Tells, row by row, which is the first of its kind in the log."""

    def __init__(self, sealed: Sequence[SealedFile], calls: Iterable[CallRecord]) -> None:
        self._seen: set[tuple[RowKey, Signature]] = set()
        keys, since = set(), 2**63 - 1
        for record in calls:
            keys.add(record.call_id)
            since = min(since, record.order)
        self.learn(sealed, keys, since)

    def learn(self, sealed: Sequence[SealedFile], call_ids: set[str], since: int) -> set[RowKey]:
        """Take note of the sealed rows of these calls that were committed at `since` or later."""
        rows = rows_of_calls(sealed, call_ids, SIGNED, since) if call_ids else []
        marks = {(key_of(row), signature_of(row)) for row in rows}
        self._seen |= marks
        return {key for key, _ in marks}

    def is_new(self, record: CallRecord) -> bool:
        mark = row_key(record), signature(record)
        new = mark not in self._seen
        self._seen.add(mark)
        return new


def signature(record: CallRecord) -> Signature:
    return (
        record.identity.execution_id,
        record.outcome,
        record.http_status,
        record.response.decode(errors="replace") if record.response is not None else None,
        record.prompt_tokens,
        *((getattr(record, name) or b"").hex() for name in _DIGESTS),
        xxhash.xxh3_128_digest(record.output or b""),
    )


def signature_of(row: Row) -> Signature:
    """The same from the columns of a sealed row."""
    output = np.array(row["output_ids"] or [], "<i4").tobytes()
    digests = (row[name] or "" for name in _DIGESTS)
    return (*(row[name] for name in _PLAIN), *digests, xxhash.xxh3_128_digest(output))


def rows_of_calls(
    sealed: Sequence[SealedFile], call_ids: set[str], columns: Sequence[str], since: int
) -> list[Row]:
    """Sealed rows of some calls; `since` lets out what was committed before."""
    # A damaged file is reported where its rows are asked for; here it only means to find no twin.
    table = read_sealed("calls", sealed, [], columns, ("call_id", call_ids), since)
    rows: list[Row] = table.to_pylist()
    return rows


def key_of(row: Row) -> RowKey:
    return row["call_id"], row["attempt"], row["choice"]
