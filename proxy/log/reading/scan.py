"""Reading journal segments, whatever a kill or a bad disk made of them.

A damaged batch must not reach Arrow's accessors: offsets that point nowhere abort the process. So
the schema is compared, every batch validated before a row of it is touched, and every row checked
against its own digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from gyre.proxy.calls import Record
from gyre.proxy.errors import LogFormatError
from gyre.proxy.log.record import journal


@dataclass(slots=True)
class Damage:
    """What was cut off while reading a segment; all zero for a healthy one."""

    torn_bytes: int = 0
    bad_rows: int = 0


def scan(path: Path, damage: Damage) -> Iterator[Record]:
    """Yield a segment's records up to its first damage, which is counted in `damage`.

    A batch that a live proxy is just writing looks like a torn tail; the caller knows from
    `is_live` not to complain about it.
    """
    size = path.stat().st_size
    good = 0
    with pa.OSFile(str(path), "rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            _require_ours(reader.schema, path)
            good = file.tell()
            for batch in reader:
                batch.validate(full=True)
                good = file.tell()
                yield from _records(batch, damage)
        except LogFormatError:
            raise
        except (pa.ArrowException, OSError):
            # The writer died inside this batch; everything before it is whole.
            damage.torn_bytes = size - good
            return
    # Zeroes read as an end-of-stream mark, so a zeroed page ends the stream early and silently.
    damage.torn_bytes = max(0, size - good)


class Tail:
    """A segment that grows: each `poll` gives what came since the last one.

    The open file keeps its content after a seal has deleted the segment.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._good = 0
        self._path = path
        self._schema: pa.Schema | None = None

    def poll(self) -> list[Record]:
        self._file.seek(self._good)
        records: list[Record] = []
        with pa.BufferReader(self._file.read()) as reader:
            start = self._good
            try:
                while reader.tell() < reader.size():
                    records += self._next(reader)
                    self._good = start + reader.tell()
            except LogFormatError:
                raise
            except (pa.ArrowException, OSError, EOFError):
                # The last batch is not complete yet; the next poll reads it again.
                return records
        return records

    def _next(self, reader: pa.BufferReader) -> list[Record]:
        message = pa.ipc.read_message(reader)
        if self._schema is None:
            schema = pa.ipc.read_schema(message)
            _require_ours(schema, self._path)
            self._schema = schema
            return []
        batch = pa.ipc.read_record_batch(message, self._schema)
        batch.validate(full=True)
        return list(_records(batch, Damage()))

    def close(self) -> None:
        self._file.close()


def _require_ours(schema: pa.Schema, path: Path) -> None:
    if not schema.equals(journal.SCHEMA):
        raise pa.ArrowInvalid("not the schema of a journal segment")
    version = (schema.metadata or {}).get(b"gyre_journal", b"")
    if version.isdigit() and int(version) > journal.JOURNAL_VERSION:
        message = f"`{path}` was written by a newer gyre"
        raise LogFormatError(message, "use a newer gyre: pip install -U gyre-rl")


def _records(batch: pa.RecordBatch, damage: Damage) -> Iterator[Record]:
    rows, checks = batch.column(2), batch.column(3).to_pylist()
    for row, check in zip(rows, checks, strict=True):
        data = row.as_buffer()
        if data is None or xxhash.xxh3_64_intdigest(data) != check:
            damage.bad_rows += 1
            continue
        yield journal.decode_record(data)
