"""Rows as the journal holds them, without the way through Arrow's tables, which is slow for a few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.schema import SCHEMAS
from gyre.proxy.log.sealing.widen import fits, getter_of, is_text
from gyre.treebuilder.offline.calls import Placed
from gyre.treebuilder.proof.wholes import Array, Row

_GET: tuple[Callable[[Any], Any], ...] = tuple(map(getter_of, Row._fields))
_TOP_K, _RETRIES = (SCHEMAS["calls"].field(name).type for name in ("top_k", "retry_count"))


def placed_record(record: CallRecord) -> Placed:
    row = row_of(record)
    return (record.order, record.worker, row.key), record.execution_attempt, row


def row_of(record: CallRecord) -> Row:
    """The same row that is read back once the record is sealed, but for its parent."""
    row = Row._make([get(record) for get in _GET])
    return row._replace(
        prompt_suffix_ids=_array(record.prompt_suffix, "<i4"),
        output_ids=_array(record.output, "<i4"),
        output_logprobs=_array(record.logprobs, "<f4"),
        version_spans=[(span.version, span.start, span.end) for span in record.version_spans],
        response=record.response if record.response is not None and is_text(record.response) else None,
        started_at=row.started_at or 0,
        ended_at=row.ended_at or 0,
        top_k=row.top_k if fits(row.top_k, _TOP_K) else None,
        retry_count=row.retry_count if fits(row.retry_count, _RETRIES) else None,
        capture_flags=list(record.capture_flags),
    )


def _array(data: bytes | None, kind: str) -> Array | None:
    return None if data is None else np.frombuffer(data, kind, len(data) // 4)
