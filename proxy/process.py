"""Whether a process of which a file speaks still lives: its number may have been given anew."""

from __future__ import annotations

import os


def born(pid: int) -> int | None:
    """When the process began, in ticks since the machine did. None: it has ended, or nobody says."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it may hold blanks and brackets.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def lives(pid: int, begun: int | None) -> bool:
    """Whether it does, and is the one that began then; None: that is not known."""
    try:
        if pid <= 0:  # to the system a group of processes, or all
            return False
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return begun is None or born(pid) == begun
