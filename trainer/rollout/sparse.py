"""Files copied with their holes: a file of 8 GB that nobody wrote takes no room, and nor does its copy."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

from gyre.elastic.process.left import plain_file

_AT_ONCE = 1 << 20


def copy_bytes(source: str, target: str, stop: threading.Event | None = None) -> None:
    """Make `target` what the file `source` holds, or a part of that when `stop` is set.

    Raises:
        OSError: `source` is no plain file or cannot be read, or `target` cannot be written.
    """
    with plain_file(source) as reading, open(target, "wb", buffering=0) as writing:
        length = os.fstat(reading).st_size
        for begin, end in _filled(reading, length):
            for place in range(begin, end, _AT_ONCE):
                if stop and stop.is_set():
                    return
                _write(writing.fileno(), os.pread(reading, min(_AT_ONCE, end - place), place), place)
        writing.truncate(length)


def _filled(file: int, length: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what is no hole."""
    place = 0
    while place < length:
        try:
            begin = os.lseek(file, place, os.SEEK_DATA)
            end = os.lseek(file, begin, os.SEEK_HOLE)
        except OSError as problem:
            if problem.errno == errno.ENXIO:
                return  # nothing but a hole is left
            if problem.errno != errno.EINVAL:
                raise
            begin, end = place, length  # of a file system that knows no holes
        yield begin, end
        place = end


def _write(file: int, data: bytes, place: int) -> None:
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
