"""Room on the disk. Without it what an agent did, and what a scorer says of that, means nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.trainer.rollout.place import PlaceError, size

LEAST = 100 << 20
"""Bytes that have to be free."""
FEWEST = 10_000
"""Files that have to be possible."""
_HINT = "make room, and start the run again to go on with it"


class RoomError(PlaceError):
    """The disk is full."""


def require_room(*folders: Path, beside: int = 0) -> None:
    """Raises RoomError where less than `LEAST` or `FEWEST` is free for one of them, `beside` what it is to
    hold."""
    for folder in folders:
        place = folder if folder.exists() else folder.parent
        found = os.statvfs(place)
        if found.f_files and found.f_favail < FEWEST:  # 0: it has no fixed number of them
            text = f"the disk is full: for `{folder}` it takes {found.f_favail} more files, and no more"
            raise RoomError(text, _HINT)
        free = found.f_bavail * found.f_frsize
        if free < LEAST + beside:
            wanted = size(LEAST + beside)
            text = f"the disk is full: for `{folder}` {size(free)} are left, and {wanted} have to be"
            raise RoomError(text, _HINT)


def is_full(problem: Exception) -> bool:
    """Whether it says that the disk is full."""
    said = isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return said or isinstance(problem, RoomError)


@contextmanager
def full_is_told() -> Iterator[None]:
    """RoomError for what the system says of a disk that is full."""
    try:
        yield
    except RoomError:
        raise
    except OSError as problem:
        if not is_full(problem):
            raise
        where = f": `{problem.filename}`" if problem.filename else ""
        raise RoomError(f"the disk is full{where}", _HINT) from problem
