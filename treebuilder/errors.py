"""What can be wrong with an execution or with a folder of trees."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from gyre.proxy.errors import GyreError

log = logging.getLogger(__name__)


class TreeError(GyreError, ValueError):
    """A folder of trees cannot be read or written, or is of a newer format."""


class ExecutionError(GyreError, ValueError):
    """One execution cannot be rebuilt; `str()` says which call and why. Others are not affected."""


def fault_of(problem: Exception, execution: str) -> ExecutionError:
    """What a fault of gyre's own costs: the execution that shows it. What agents send can be anything.

    Raises:
        MemoryError, OSError, GyreError: these are no faults, and the next execution would meet them too.
    """
    if isinstance(problem, MemoryError | OSError | GyreError):
        raise problem
    log.error("the tree of `%s` cannot be built", execution, exc_info=problem)
    return ExecutionError(f"a fault of gyre's own: {type(problem).__name__}: {problem}")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def unwritable(path: Path, problem: OSError) -> TreeError:
    """What the system refused, and what there is to do about it."""
    text = " ".join((problem.strerror or str(problem)).split())
    if problem.errno in _FORBIDDEN:
        hint = "may you write there? give another path with `--out`"
    else:
        hint = "is there room on its disk?" if problem.errno in _FULL else "give another path with `--out`"
    return TreeError(f"cannot write to `{path}`: {text}", hint)
