"""Starts one program, keeps what it says within limits, and leaves none of its processes behind.

A program of its own that is run by its path and needs the standard library only, so that it stands apart
from who started it, and outlives that for as long as it takes to clean up. It forks itself for each program
(`nursery.py` asks it to). On Linux a supervisor adopts every process that its program leaves behind, also
those that made themselves a session of their own. Elsewhere it ends the program's process group.

A supervisor reads one line of JSON, a `Spec`, and then either `stop` or the end of its input: both end the
program. It writes one line when the program runs, `Started`, and one at the end, `Report`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypedDict

TAIL = 1 << 16
"""Bytes kept of the end of an output of which the middle was dropped."""
_READ = 1 << 16
_LEFT_GRACE_S = 2.0
"""How long what the program left running may take to end by itself."""
_KILL_S = 10.0
"""How long to go on killing; what then still runs cannot be killed."""
_COUNT_S = 1.0
"""How often its processes are counted, where there is a limit."""
_SET_CHILD_SUBREAPER = 36


class Spec(TypedDict):
    argv: list[str]
    env: dict[str, str]
    cwd: str
    stdin: str
    """A file, as the next two."""
    stdout: str
    stderr: str
    keep: int
    """Bytes of each output that are kept."""
    limits: dict[str, int]
    """As `setrlimit` takes them: `FSIZE`, `AS`, `CORE`."""
    process_limit: int
    """Processes that it may have at once; 0: any."""
    wraps: bool
    """Whether it only looks after another one, and so ends by itself with that."""
    grace_s: float
    """Between SIGTERM and SIGKILL."""


class Started(TypedDict):
    pid: int | None
    error: str | None
    """Why it could not be started."""


class Report(TypedDict):
    code: int
    """Exit code, or the negative number of the signal that ended it."""
    seconds: float
    stdout: tuple[int, int]
    """(bytes written, bytes of these that were dropped)"""
    stderr: tuple[int, int]
    left: int
    """Processes that still ran when the program itself had ended."""
    immortal: int
    """Processes that could not be ended."""
    crowded: bool
    """Whether it was ended for having too many."""


def main() -> None:
    """Until who asks is gone: fork for each pair of descriptors that comes."""
    signal.signal(signal.SIGCHLD, lambda *_: _reap_supervisors())
    _stay()
    gc.freeze()  # so that less of our memory is copied
    with socket.socket(fileno=0) as channel:
        while True:
            asked, descriptors, _, _ = socket.recv_fds(channel, 1, 3)
            if not asked:
                return
            if os.fork() == 0:
                try:
                    _become_supervisor(descriptors)
                    supervise()
                finally:
                    os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)


def _reap_supervisors() -> None:
    """So that none stays a zombie, and what they and their programs computed is known of us."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become_supervisor(descriptors: list[int]) -> None:
    """With pipes in the place of our input and output; a third descriptor stays open, and that is all."""
    os.setsid()
    for number, descriptor in enumerate(descriptors[:2]):
        os.dup2(descriptor, number)
        os.close(descriptor)


def supervise() -> None:
    line, rest = _first_line()
    spec: Spec = json.loads(line)
    if sys.platform == "linux":
        _adopt_orphans()
    try:
        program = Program(spec, asked=bool(rest))
    except (OSError, ValueError) as problem:
        _say(Started(pid=None, error=_reason(problem)))
        return
    _say(Started(pid=program.pid, error=None))
    _say(program.run())


def _stay() -> None:
    """Our end comes with that of our input. A handler, since what is ignored stays so in the program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)


class Program:
    """It runs from the moment that this is made."""

    def __init__(self, spec: Spec, *, asked: bool) -> None:
        self._asked = asked
        """Whether it shall end."""
        self._grace_s = spec["grace_s"]
        self._most = spec["process_limit"]
        self._wraps = spec["wraps"]
        self._outputs = [Output(spec["stdout"], spec["keep"]), Output(spec["stderr"], spec["keep"])]
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._since = time.monotonic()
        with open(spec["stdin"], "rb") as stdin:
            self._process = subprocess.Popen(
                spec["argv"],
                cwd=spec["cwd"],
                env=spec["env"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=(lambda: _limit(spec["limits"])) if spec["limits"] else None,
            )
        self.pid = self._process.pid
        self._code: int | None = None
        self._seconds = 0.0
        self._left = 0
        self._alone = False
        """Whether no process of it is left."""
        self._crowded = False

    def run(self) -> Report:
        """Until it and all that it started have ended."""
        sources = self._sources()
        self._run(sources)
        if not self._alone:
            self._left = len(self._processes()) if self._code is not None else 0
            grace_s = self._grace_s if self._code is None else min(self._grace_s, _LEFT_GRACE_S)
            self._signal(signal.SIGTERM)
            self._turn(sources, lambda: self._alone, grace_s)
        end = time.monotonic() + _KILL_S
        while not self._alone and time.monotonic() < end:
            # Anew each time: what a dying process had started meanwhile becomes ours.
            self._signal(signal.SIGKILL)
            self._turn(sources, lambda: self._alone, 0.05)
        for output, source in ((self._outputs[n], fd) for fd, n in sources.items() if n is not None):
            output.drain(source)
        return self._report()

    def _run(self, sources: dict[int, int | None]) -> None:
        """Until it ended or has to."""

        def over() -> bool:
            return self._asked or self._code is not None

        while not over() and not self._crowded:
            self._turn(sources, over, _COUNT_S if self._most else None)
            self._crowded = bool(self._most) and not over() and len(self._processes()) > self._most

    def _report(self) -> Report:
        if self._code is None:
            self._note_end(-signal.SIGKILL)
        stdout, stderr = (output.close() for output in self._outputs)
        assert self._code is not None
        return Report(
            code=self._code,
            seconds=self._seconds,
            stdout=stdout,
            stderr=stderr,
            left=self._left,
            immortal=0 if self._alone else len(self._processes()),
            crowded=self._crowded,
        )

    def _sources(self) -> dict[int, int | None]:
        """What to listen to; of outputs which."""
        assert self._process.stdout and self._process.stderr
        pipes = [self._process.stdout.fileno(), self._process.stderr.fileno()]
        for pipe in pipes:
            os.set_blocking(pipe, False)
        return {0: None, self._woken: None, pipes[0]: 0, pipes[1]: 1}

    def _turn(self, sources: dict[int, int | None], done: Callable[[], bool], seconds: float | None) -> None:
        """Take in what comes until `done`, at most so long."""
        end = None if seconds is None else time.monotonic() + seconds
        self._reap()
        while not done():
            poll = select.poll()
            for source in sources:
                poll.register(source, select.POLLIN)
            left = None if end is None else max(0, (end - time.monotonic()) * 1000)
            ready = [source for source, _ in poll.poll(left)]
            for source in ready:
                if not self._take(source, sources[source]):
                    del sources[source]
            self._reap()
            if end is not None and time.monotonic() >= end:
                return

    def _take(self, source: int, output: int | None) -> bool:
        """Read what is there; False when nothing more can come."""
        if output is not None:
            return self._outputs[output].take(source)
        data = os.read(source, _READ)
        if source == 0:
            self._asked = True
        return bool(data)

    def _reap(self) -> None:
        """Take note of every child that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = sys.platform == "linux" or not self._group_lives()
                return
            if pid == 0:
                return
            if pid == self.pid:
                self._note_end(os.waitstatus_to_exitcode(status))

    def _note_end(self, code: int) -> None:
        self._code, self._seconds = code, time.monotonic() - self._since

    def _processes(self) -> list[int]:
        return list(descendants(os.getpid())) if sys.platform == "linux" else []

    def _signal(self, number: int) -> None:
        """Once to each: programs take a second SIGTERM for impatience."""
        if sys.platform != "linux":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        for pid in self._processes():
            if self._wraps and pid == self.pid and number == signal.SIGTERM:
                continue  # or what it wraps would have no time
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class Output:
    """The beginning of what a pipe brings goes to a file, and the end of it, if that is long."""

    def __init__(self, path: str, keep: int) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._room = max(keep - TAIL, 0)
        self._tail = b""
        self._bytes = 0
        self._over = 0

    def take(self, source: int) -> bool:
        """Read once; False at the end of the pipe."""
        try:
            data = os.read(source, _READ)
        except BlockingIOError:
            return True
        self._bytes += len(data)
        head, rest = data[: self._room], data[self._room :]
        try:
            self._file.write(head)
            self._room -= len(head)
        except OSError:
            # The disk is full: go on reading, for the program would wait for us.
            self._room, rest = 0, data
        self._over += len(rest)
        self._tail = (self._tail + rest)[-TAIL:]
        return bool(data)

    def drain(self, source: int) -> None:
        """What lies in the pipe when nobody writes any more."""
        while select.select([source], [], [], 0)[0] and self.take(source):
            pass

    def close(self) -> tuple[int, int]:
        """(bytes that came, bytes of these that are not in the file)"""
        dropped = self._over - len(self._tail)
        with suppress(OSError), self._file:
            if dropped:
                self._file.write(b"\n[%d bytes are not kept]\n" % dropped)
            self._file.write(self._tail)
        return self._bytes, dropped


def descendants(root: int) -> Iterator[int]:
    """Every process below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError):
                children.setdefault(_parent(entry), []).append(int(entry))
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop(0)
        yield pid
        waiting += children.get(pid, ())


def _parent(pid: str) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name before it may hold blanks and brackets.
        return int(file.read().rpartition(b")")[2].split()[1])


def _adopt_orphans() -> None:
    """Whoever loses its parent becomes our child, not that of process 1."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _limit(limits: dict[str, int]) -> None:
    for name, size in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        most = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(number, (most, most))


def _reason(problem: OSError | ValueError) -> str:
    if not isinstance(problem, OSError):
        return str(problem)
    where = f"`{problem.filename}`: " if problem.filename is not None else ""
    return where + (problem.strerror or str(problem))


def _first_line() -> tuple[bytes, bytes]:
    """And what came after it."""
    said = b""
    while b"\n" not in said:
        data = os.read(0, _READ)
        if not data:
            sys.exit(1)
        said += data
    line, _, rest = said.partition(b"\n")
    return line, rest


def _say(document: Started | Report) -> None:
    # Whoever listens may be gone.
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    main()
