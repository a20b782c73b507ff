"""Journal records to public columns: the only place that knows both forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gyre.proxy.calls import (
    CallRecord,
    CaptureQuality,
    ExecutionRecord,
    Identity,
    IntentRecord,
    NewMessage,
    Outcome,
    Phase,
    Sampling,
)
from gyre.proxy.capture.usage import read_usage
from gyre.proxy.log.schema import IDS, LOGPROBS, SCHEMAS

Getter = Callable[[Any], Any]

RowKey = tuple[str, int, int]
"""(call_id, attempt, choice)"""


def row_key(record: CallRecord) -> RowKey:
    return record.call_id, record.attempt, record.choice


def interrupted(intent: IntentRecord) -> CallRecord:
    """The row of an attempt whose proxy died: what is known from its dispatch."""
    return CallRecord(
        order=intent.order,
        worker=intent.worker,
        call_id=intent.call_id,
        attempt=intent.attempt,
        execution_attempt=intent.execution_attempt,
        identity=Identity(intent.execution_id, "intent"),
        wire=intent.wire,
        method=intent.method,
        path=intent.path,
        model=intent.model,
        backend=intent.backend,
        stream=intent.stream,
        started_ns=intent.started_ns,
        ended_ns=0,
        outcome=Outcome.INTERRUPTED.value,
        phase=Phase.CONNECT.value,
        request_digest=intent.request_digest,
        capture_quality=CaptureQuality.NONE.value,
    )


def calls_table(records: Sequence[CallRecord]) -> pa.Table:
    for record in records:
        _keep_bytes_that_are_no_text(record)
    return _table("calls", records, _CALL)


def executions_table(records: Sequence[ExecutionRecord]) -> pa.Table:
    return _table("executions", records, _EXECUTION)


def messages_table(messages: Iterable[NewMessage]) -> pa.Table:
    return _table("messages", list(messages), _MESSAGE)


def _table(name: str, records: Sequence[Any], getters: dict[str, Getter]) -> pa.Table:
    schema = SCHEMAS[name]
    arrays = []
    for field in schema:
        get = getters.get(field.name) or attrgetter(field.name)
        arrays.append(_array([get(record) for record in records], field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind in (IDS, LOGPROBS):
        return _packed(values, kind)
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):
        # A client may ask for a seed of 2**64; the request has it, and a seal must not fail over it.
        return pa.array([value if fits(value, kind) else None for value in values], kind)


def fits(value: int | None, kind: pa.DataType) -> bool:
    """Whether a column of integers takes it."""
    return value is None or -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)


def _packed(values: list[bytes | None], kind: pa.ListType) -> pa.Array:
    """A list column from packed 4-byte values, without an object per id."""
    sizes = [len(value) // 4 if value is not None else 0 for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    items = pa.Array.from_buffers(kind.value_type, int(offsets[-1]), [None, data])
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=mask)


def _keep_bytes_that_are_no_text(record: CallRecord) -> None:
    """JSON columns are text; a body that is not UTF-8 goes to the binary column beside it."""
    if record.request is not None and not is_text(record.request):
        record.raw_request = record.raw_request or record.request
        record.request = None
    if record.response is not None and not is_text(record.response):
        record.raw_response = record.raw_response or record.response
        record.response = None


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def getter_of(column: str) -> Getter:
    """What a column of `calls` is made of; list columns of numbers are given packed."""
    return _CALL.get(column) or attrgetter(column)


def _text(name: str) -> Getter:
    def get(record: Any) -> str | None:
        data: bytes | None = getattr(record, name)
        return None if data is None else data.decode(errors="replace")

    return get


def _hex(name: str) -> Getter:
    def get(record: Any) -> str | None:
        digest: bytes | None = getattr(record, name)
        return digest.hex() if digest else None

    return get


def _hexes(name: str) -> Getter:
    return lambda record: [digest.hex() for digest in getattr(record, name)]


def _micros(name: str) -> Getter:
    def get(record: Any) -> int | None:
        nanos: int | None = getattr(record, name)
        return nanos // 1000 if nanos else None

    return get


def _usage(name: str) -> Getter:
    def get(record: CallRecord) -> int | None:
        value: int | None = getattr(read_usage(record.usage), name)
        return value

    return get


def _hints(record: CallRecord) -> str | None:
    return msgspec.json.encode(record.identity.hints).decode() if record.identity.hints else None


def _structs(get: Getter) -> Getter:
    """A list of structs as Arrow takes it."""

    def structs(record: CallRecord) -> list[dict[str, Any]] | None:
        values = get(record)
        return None if values is None else [msgspec.structs.asdict(value) for value in values]

    return structs


def _own(name: str) -> Getter:
    return lambda record: None if record.own is None else getattr(record.own, name)


_IDENTITY = set(Identity.__struct_fields__) - {"hints", "flags"}
_SAMPLING = Sampling.__struct_fields__

_CALL: dict[str, Getter] = {
    **{name: attrgetter(f"identity.{name}") for name in _IDENTITY},
    **{name: attrgetter(f"sampling.{name}") for name in _SAMPLING},
    **{name: _text(name) for name in ("request", "response", "response_meta", "usage")},
    **{name: _hex(name) for name in ("request_digest", "response_digest", "prompt_digest")},
    "started_at": _micros("started_ns"),
    "first_byte_at": _micros("first_byte_ns"),
    "ended_at": _micros("ended_ns"),
    "message_hashes": _hexes("message_suffix"),
    "tool_hashes": _hexes("tools"),
    "prompt_suffix_ids": attrgetter("prompt_suffix"),
    "output_ids": attrgetter("output"),
    "output_logprobs": attrgetter("logprobs"),
    "raw_logprobs": _own("raw_logprobs"),
    "version_spans": _structs(attrgetter("version_spans")),
    "kv_spans": _structs(_own("kv_spans")),
    "weight_digests": _structs(_own("weight_digests")),
    "spliced_tokens": _own("spliced_tokens"),
    "usage_prompt_tokens": _usage("prompt"),
    "usage_completion_tokens": _usage("completion"),
    "usage_cached_tokens": _usage("cached"),
    "lineage_hints": _hints,
    "upstream_wire": lambda record: record.upstream_wire or record.wire,
}
_EXECUTION: dict[str, Getter] = {"at": _micros("at_ns"), "details": _text("details")}
_MESSAGE: dict[str, Getter] = {"hash": _hex("hash"), "body": _text("body")}
