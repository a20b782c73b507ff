"""Reading journal segments, whatever a kill or a bad disk made of them.

A damaged batch must not reach Arrow's accessors: offsets that point nowhere abort the process. So
every batch is validated before a row of it is touched, and every row against its own checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from gyre.proxy.calls import Record
from gyre.proxy.log import journal
from gyre.proxy.log.journal import Damage


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
            good = file.tell()
            for batch in reader:
                batch.validate(full=True)
                good = file.tell()
                yield from journal._records(batch, damage)
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
            except (pa.ArrowException, OSError, EOFError):
                # The last batch is not complete yet; the next poll reads it again.
                return records
        return records

    def _next(self, reader: pa.BufferReader) -> list[Record]:
        message = pa.ipc.read_message(reader)
        if self._schema is None:
            self._schema = pa.ipc.read_schema(message)
            return []
        batch = pa.ipc.read_record_batch(message, self._schema)
        batch.validate(full=True)
        return list(journal._records(batch, Damage()))

    def close(self) -> None:
        self._file.close()
