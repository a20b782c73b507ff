"""Files that a program may have replaced by something else: by a link to what is not its own, by a pipe.

Whoever reads them plainly reads another file, or waits for good.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_NO_FILE = (errno.ELOOP, errno.ENXIO)
"""What the system says of a link, and of a socket."""


class NoPlainFileError(OSError):
    """A link, a folder, a pipe, a socket or a device stands where a file should."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "it is no plain file", path)


@contextmanager
def plain_file(path: str | Path) -> Iterator[int]:
    """A descriptor to read it; no link is followed at its end, and nothing is waited for.

    Raises:
        NoPlainFileError: it is something else.
        OSError: it is not there, or may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno in _NO_FILE:
            raise NoPlainFileError(str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NoPlainFileError(str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def read_end(path: Path, most: int) -> bytes | None:
    """Its last bytes, `most` of them; None where there is no file, or something else than a file.

    Raises:
        OSError: it may not be read.
    """
    try:
        with plain_file(path) as descriptor:
            return _end(descriptor, most)
    except NoPlainFileError:
        return None
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            return None
        raise


def _end(descriptor: int, most: int) -> bytes:
    begin = max(0, os.fstat(descriptor).st_size - most)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(begin)
        return file.read(most)
