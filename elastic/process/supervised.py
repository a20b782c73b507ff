"""A program under its supervisor (`reaper.py`), as the one who started it sees it.

with Supervised(program) as running:
    while (report := running.wait(0.2)) is None:
        if clock.expired():
            running.stop()

When this process dies, the supervisor ends the program and all that it started.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gyre.elastic.process import reaper
from gyre.elastic.process.nursery import new_supervisor
from gyre.proxy.errors import GyreError

MARK = "GYRE_RUN"
"""In the environment of each process of an execution, to find them should their supervisor be killed."""
GRACE_S = 10.0
OUTPUT_LIMIT = 64 << 20
_UNWIND_S = 30.0
_SWEEPS = 20
_TRIES = 2


class StartError(GyreError, OSError):
    """A program could not be started; the message says which and why."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to start, and where what it says goes."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: Path = Path(os.devnull)
    stdout: Path
    stderr: Path
    output_limit: int = OUTPUT_LIMIT
    """Bytes of each output that are kept."""
    file_limit: int = 0
    """Bytes that one file may have; 0: any."""
    memory_limit: int = 0
    """Bytes of address space that each process may have; 0: any."""
    process_limit: int = 0
    """Processes at once; 0: any. They are counted once a second: this ends what grows, not what explodes."""
    core_dumps: bool = True
    wraps: bool = False
    """Whether it only looks after another program, as bubblewrap does, and ends with that."""
    grace_s: float = GRACE_S
    """Between SIGTERM and SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a program wrote to one of its outputs, in bytes."""

    bytes: int = 0
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a program ended."""

    code: int | None
    """Exit code; None when a signal ended it."""
    signal: int | None = None
    seconds: float = 0.0
    stdout: Output = Output()
    stderr: Output = Output()
    left: int = 0
    """Processes that it left running, which were then ended."""
    immortal: int = 0
    """Processes that could not be ended."""
    crowded: bool = False
    """Whether it was ended for having too many processes."""
    lost: bool = False
    """Whether somebody killed the supervisor, so that nothing else is known."""


class Supervised:
    """A running program. Leaving the block ends it, if it still runs.

    `lock` is a descriptor that stays open as long as any process of it may live.

    Raises:
        StartError: the program cannot be started.
    """

    def __init__(self, program: Program, lock: int | None = None) -> None:
        self._mark = secrets.token_hex(8)
        self._since = time.monotonic()
        self._report: Report | None = None
        for _ in range(_TRIES):
            self._said = b""
            self._ends = new_supervisor(lock)
            try:
                pid = self._begin(program)
            except BaseException:
                self._close()
                raise
            if pid is not None:
                self.pid = pid
                return
            self._close()
            sweep(self._mark)  # it may have begun
        raise StartError(f"the supervisor of `{program.argv[0]}` does not start")

    def __enter__(self) -> Supervised:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._report is None:
            self.stop()
            self._close()

    def wait(self, seconds: float) -> Report | None:
        """How it ended, or None when it has not, so many seconds from now."""
        if self._report is None and (line := self._line(seconds)) is not None:
            self._report = _report(json.loads(line)) if line else self._lost()
            self._close()
        return self._report

    def stop(self) -> None:
        """SIGTERM to everything that belongs to it, SIGKILL after the grace; `wait` tells when it is done."""
        if self._report is None:
            self._tell(b"stop\n")

    def _begin(self, program: Program) -> int | None:
        """Its process id; None when somebody killed the supervisor first."""
        spec = reaper.Spec(
            argv=list(program.argv),
            env={**program.env, MARK: self._mark},
            cwd=str(program.cwd),
            stdin=str(program.stdin),
            stdout=str(program.stdout),
            stderr=str(program.stderr),
            keep=program.output_limit,
            limits=_limits(program),
            process_limit=program.process_limit,
            wraps=program.wraps,
            grace_s=program.grace_s,
        )
        self._tell(json.dumps(spec).encode() + b"\n")
        line = self._line(_UNWIND_S)
        if not line:
            return None
        started: reaper.Started = json.loads(line)
        if started["pid"] is None:
            raise StartError(f"cannot start `{program.argv[0]}`: {started['error']}")
        return started["pid"]

    def _tell(self, text: bytes) -> None:
        with suppress(BrokenPipeError):
            while text:
                text = text[os.write(self._ends.told, text) :]

    def _line(self, seconds: float) -> bytes | None:
        """The next line; empty at the end, None when none came in time."""
        source = self._ends.said
        poll = select.poll()
        poll.register(source, select.POLLIN)
        end = time.monotonic() + seconds
        while b"\n" not in self._said:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return None
            data = os.read(source, 1 << 16)
            if not data:
                return b""
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line

    def _lost(self) -> Report:
        sweep(self._mark)
        return Report(code=None, seconds=time.monotonic() - self._since, lost=True)

    def _close(self) -> None:
        """The end of its input ends the supervisor, and with it the program."""
        os.close(self._ends.told)
        while os.read(self._ends.said, 1 << 16):
            pass  # until it is gone
        os.close(self._ends.said)


def _limits(program: Program) -> dict[str, int]:
    found = {"FSIZE": program.file_limit, "AS": program.memory_limit}
    limits = {name: size for name, size in found.items() if size}
    return limits if program.core_dumps else {**limits, "CORE": 0}


def _report(said: Mapping[str, Any]) -> Report:
    code = said["code"]
    return Report(
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        seconds=said["seconds"],
        stdout=Output(bytes=said["stdout"][0], dropped=said["stdout"][1]),
        stderr=Output(bytes=said["stderr"][0], dropped=said["stderr"][1]),
        left=said["left"],
        immortal=said["immortal"],
        crowded=said["crowded"],
    )


def sweep(mark: str) -> None:
    """End every process that has the mark in its environment, until none is left. Linux only."""
    for _ in range(_SWEEPS):
        marked = list(_marked(mark)) if sys.platform == "linux" else []
        if not marked:
            return
        for pid in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError):
                # Of a process that has ended and waits for its parent it is empty.
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    yield int(entry)
