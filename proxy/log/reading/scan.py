"""Reading journal segments, whatever a kill or a bad disk made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gyre.proxy.calls import Record
from gyre.proxy.log.record import journal


@dataclass(slots=True)
class Damage:
    """What was cut off while reading a segment; all zero for a healthy one."""

    torn_bytes: int = 0
    bad_rows: int = 0


def scan(path: Path, damage: Damage) -> Iterator[Record]:
    """Yield a segment's records up to where no whole row follows; what is lost is counted in `damage`.

    A row that a live proxy is just writing looks like a torn tail; the caller knows from `is_live`
    not to complain about it.
    """
    with path.open("rb") as file:
        size, good = path.stat().st_size, 0
        if journal.read_start(file, path):
            good = file.tell()
            for record in journal.read_rows(file):
                good = file.tell()
                if record is None:
                    damage.bad_rows += 1
                else:
                    yield record
    damage.torn_bytes = max(0, size - good)


class Tail:
    """A segment that grows: each `poll` gives what came since the last one.

    The open file keeps its content after a seal has deleted the segment.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._good = 0
        self._path = path

    def poll(self) -> list[Record]:
        self._file.seek(self._good)
        if not self._good:
            if not journal.read_start(self._file, self._path):
                return []
            self._good = self._file.tell()
        records: list[Record] = []
        for record in journal.read_rows(self._file):
            self._good = self._file.tell()
            if record is not None:
                records.append(record)
        return records

    def close(self) -> None:
        self._file.close()
