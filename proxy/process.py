"""Whether a process of which a file speaks still lives, since its number may have been given anew; and how
many files this one may open.
"""

from __future__ import annotations

import os
import resource

_OPEN_FILES = 1 << 16


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


def allow_open_files() -> None:
    """Let this process open as many as it may: many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
