"""Where supervisors come from: a process that forks one for each program.

To start Python anew for each takes longer than many a program runs. It ends with us; supervisors do not need
it. Should somebody kill it, the next program gets another.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

from gyre.elastic.process import reaper

_BORN = b"+"


@dataclass(frozen=True)
class Ends:
    """Our ends of the pipes to a supervisor: descriptors. It ends with `told`, and `said` with it."""

    told: int
    said: int


class _Nursery:
    """The process, of whoever made this: a fork of ours needs another."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )

    def send(self, descriptors: list[int]) -> None:
        socket.send_fds(self._socket, [_BORN], descriptors)

    def close(self) -> None:
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()


_guard = threading.Lock()
_nursery: _Nursery | None = None


def new_supervisor(lock: int | None) -> Ends:
    """One that waits for its program; it keeps the descriptor `lock` open.

    Raises:
        OSError: the system has no more processes or descriptors.
    """
    theirs_told, told = os.pipe()
    said, theirs_said = os.pipe()
    try:
        _ask([theirs_told, theirs_said, *([] if lock is None else [lock])])
    except OSError:
        os.close(told)
        os.close(said)
        raise
    finally:
        os.close(theirs_told)
        os.close(theirs_said)
    return Ends(told, said)


def _ask(descriptors: list[int]) -> None:
    global _nursery
    with _guard:
        if _nursery is not None and _nursery.owner == os.getpid():
            try:
                return _nursery.send(descriptors)
            except (BrokenPipeError, ConnectionResetError):
                _nursery.close()
        _nursery = _Nursery()
        _nursery.send(descriptors)


@atexit.register
def _close() -> None:
    if _nursery is not None:
        _nursery.close()
