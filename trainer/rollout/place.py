"""The folder of one execution: its workspace, its home, what it said, and who may work in it.

RUNS/NAME/execution.json    what is known of it, see state.py
RUNS/NAME/workspace/        where the harness worked; kept as it left it
RUNS/NAME/home/             its HOME: configuration, transcripts
RUNS/NAME/instruction.md    what it was told
RUNS/NAME/stdout.txt, stderr.txt
RUNS/NAME/scorer/           what the scorer said
RUNS/NAME/attempt-1/        the same of a second attempt, and so on
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gyre.proxy.errors import GyreError

_LOCK = "lock"
RESERVED = frozenset((_LOCK, "proxy.txt", "proxy.stdout.txt"))
"""What else lies in the folder of runs."""


class PlaceError(GyreError, OSError):
    """An execution cannot have the folder that it needs."""

    def __str__(self) -> str:
        return self.message


class BusyError(GyreError, RuntimeError):
    """Another process runs what we were asked to run."""


@dataclass(frozen=True)
class Place:
    """The folder of one try of an execution."""

    root: Path
    """Of the execution; the first try lies here itself."""
    number: int = 0

    @property
    def folder(self) -> Path:
        return self.root / f"attempt-{self.number}" if self.number else self.root

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def instruction(self) -> Path:
        return self.folder / "instruction.md"

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout.txt"

    @property
    def stderr(self) -> Path:
        return self.folder / "stderr.txt"

    @property
    def scorer(self) -> Path:
        return self.folder / "scorer"


def size(number: int) -> str:
    """`12.3 MB`"""
    value = float(number)
    for unit in ("bytes", "KB", "MB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.2f} GB"


_ENTRY = 4096
"""Bytes that even an empty file counts as: disks run out of entries, too."""


def bytes_below(folder: Path) -> int:
    """What the files in `folder` take on the disk, each once; links are not followed."""
    total, waiting = 0, [str(folder)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        # A program that works in it may remove what was just listed.
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif stat.st_nlink > 1:
                        if (stat.st_dev, stat.st_ino) in seen:
                            continue
                        seen.add((stat.st_dev, stat.st_ino))
                    total += max(stat.st_blocks * 512, _ENTRY)
    return total


def checked_folder(name: str) -> str:
    """`name`, if the folder of runs has nothing else of that name.

    Raises:
        PlaceError: it has.
    """
    if name.lower() in RESERVED:
        raise PlaceError(
            f"an execution cannot be called `{name}`: gyre itself writes that in the folder of runs",
            "give it another name with `--execution`",
        )
    return name


@contextmanager
def locked(folder: Path, what: str, patience_s: float = 0.0) -> Iterator[int]:
    """Be the only one who works in `folder`. Gives a descriptor: whoever inherits it keeps the lock.

    Raises:
        BusyError: another process still is that after `patience_s`.
        PlaceError: there is no such folder and none can be made, or it has something else called `lock`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as problem:
        hint = "move that out of the way, or give another `--runs`"
        raise PlaceError(f"{what} cannot be run: `{problem.filename}`: {problem.strerror}", hint) from None
    try:
        end = time.monotonic() + patience_s
        while not _taken(descriptor):
            if time.monotonic() >= end:
                raise BusyError(f"{what} is being run by another process", "wait for it to end")
            time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
