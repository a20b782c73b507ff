"""One journal segment: rows one after the other, readable after a kill at any byte.

A segment begins with its format's name and version. A row is a record in msgpack
(`gyre.proxy.calls.Record`) behind its length and digest, and these behind a check of their own: so a
flaw in a row costs that row, and of a torn end nothing is believed. Sealing widens rows to the public
columns. A lock on the open file tells readers that its writer lives. After any write error the
segment must be left: later rows would be unreadable.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from gyre.proxy.calls import Record
from gyre.proxy.errors import LogFormatError

JOURNAL_VERSION = 1
SUFFIX = ".journal"
_MAGIC = b"gyre-journal"
_START = struct.Struct("<12sI")
"""Of a segment: magic, version."""
_HEAD = struct.Struct("<I8s")
"""Of a row: its length and xxh3-64, then the xxh32 of these."""
_HEAD_BYTES = _HEAD.size + 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode

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
            self._write(_START.pack(_MAGIC, JOURNAL_VERSION))
        except OSError:
            self.close()
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Hand a group of records to the operating system at once."""
        parts: list[bytes] = []
        for record in records:
            row = _encode(record)
            head = _HEAD.pack(len(row), xxhash.xxh3_64_digest(row))
            parts += (head, xxhash.xxh32_digest(head), row)
        self._write(b"".join(parts))

    def duplicate(self) -> int:
        """A descriptor of its own for the same file, to be synced and closed elsewhere."""
        return os.dup(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        self.bytes += len(data)
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]


def read_start(file: BinaryIO, path: Path) -> bool:
    """Go past the beginning of a segment; False when it is not that of one.

    Raises:
        LogFormatError: a newer gyre wrote it.
    """
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        return False
    _, version = _START.unpack(start)
    if version > JOURNAL_VERSION:
        message = f"`{path}` was written by a newer gyre"
        raise LogFormatError(message, "use a newer gyre: pip install -U gyre-rl")
    return True


def read_rows(file: BinaryIO) -> Iterator[Record | None]:
    """The records that follow, None for a row that is not what was written.

    Ends where no whole row follows; the rows given are then before `file.tell()`, what was read on not.
    """
    while len(head := file.read(_HEAD_BYTES)) == _HEAD_BYTES:
        length, digest = _HEAD.unpack_from(head)
        if xxhash.xxh32_digest(head[: _HEAD.size]) != head[_HEAD.size :]:
            return
        row = file.read(length)
        if len(row) < length:
            return
        yield _decode(row) if xxhash.xxh3_64_digest(row) == digest else None


def is_live(path: Path) -> bool:
    """Whether the process that writes this segment still runs."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
