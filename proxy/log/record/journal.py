"""Writing one journal segment: an Arrow IPC stream that is readable after a kill at any byte.

A row is `order, kind, row, check`: the record in msgpack (`gyre.proxy.calls.Record`) and its xxh3-64,
since a zeroed page would otherwise read as valid ids. Few columns, because building a batch costs
per column; sealing widens rows to the public columns. A lock on the open file tells readers that its
writer lives. After any write error the segment must be left: later batches would be unreadable.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import pyarrow as pa
import xxhash

from gyre.proxy.calls import CallRecord, CloseRecord, ExecutionRecord, IntentRecord, Record

JOURNAL_VERSION = 1
SUFFIX = ".arrows"
KINDS: dict[type[Record], int] = {IntentRecord: 1, CallRecord: 2, ExecutionRecord: 3, CloseRecord: 4}

SCHEMA = pa.schema(
    [("order", pa.int64()), ("kind", pa.int8()), ("row", pa.large_binary()), ("check", pa.uint64())],
    metadata={"gyre_journal": str(JOURNAL_VERSION)},
)
_encode = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(Record).decode

Opener = Callable[[Path], int]
"""Opens a new segment for appending and returns its descriptor; tests pass one that fails."""


def open_new(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)


class Segment:
    """The segment this process appends to. Any OSError leaves it unusable: open another one."""

    def __init__(self, path: Path, opener: Opener = open_new) -> None:
        self.path = path
        self.bytes = 0
        self._fd = opener(path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(SCHEMA.serialize())
        except OSError:
            self.close()
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Hand a group of records to the operating system in one batch."""
        rows = [_encode(record) for record in records]
        count = len(rows)
        ends = list(accumulate(map(len, rows), initial=0))
        # From buffers: handing Python lists to Arrow costs twice as much on the path of every call.
        batch = pa.RecordBatch.from_arrays(
            [
                _array(pa.int64(), count, struct.pack(f"<{count}q", *[record.order for record in records])),
                _array(pa.int8(), count, bytes([KINDS[type(record)] for record in records])),
                _array(pa.large_binary(), count, struct.pack(f"<{count + 1}q", *ends), b"".join(rows)),
                _array(pa.uint64(), count, struct.pack(f"<{count}Q", *map(xxhash.xxh3_64_intdigest, rows))),
            ],
            schema=SCHEMA,
        )
        self._write(batch.serialize())

    def duplicate(self) -> int:
        """A descriptor of its own for the same file, to be synced and closed elsewhere."""
        return os.dup(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: pa.Buffer) -> None:
        view = memoryview(data)
        self.bytes += len(view)
        while view:
            view = view[os.write(self._fd, view) :]


def _array(kind: pa.DataType, count: int, *buffers: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def is_live(path: Path) -> bool:
    """Whether the process that writes this segment still runs."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
