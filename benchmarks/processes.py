"""Servers in processes of their own, pinned to cores; CPU time and memory of whole process trees."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
SYSTEM_CORE, LOAD_CORE = 0, 1
_STARTUP_S = 60


def module(name: str, *arguments: str) -> list[str]:
    """The command of one of our own servers; run it from the root of the project."""
    return [sys.executable, "-m", name, *arguments]


class Server:
    """A process that prints one JSON line with its `url` when it is ready; stopped on leaving `with`."""

    def __init__(self, command: list[str], core: int, stop_signal: int = signal.SIGTERM) -> None:
        self._stop_signal = stop_signal
        self.stop_cpu_s = 0.0
        self._command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long-lived as the process
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            preexec_fn=lambda: pin(core),
        )
        self.pid = self.process.pid
        self.url: str = self._ready()["url"].rstrip("/")

    def _ready(self) -> dict[str, Any]:
        guard = threading.Timer(_STARTUP_S, self.process.kill)
        guard.start()
        assert self.process.stdout
        line = self.process.stdout.readline()
        guard.cancel()
        if not line:
            raise RuntimeError(f"a server did not start: {self.state()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def state(self) -> str:
        """For error messages: whether it lives, and the end of what it said on stderr."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-4000:]
        return f"`{' '.join(self._command)}` (exit status {self.process.poll()}):\n{said}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask it to end; `stop_cpu_s` is what it spent on that."""
        if self.process.returncode is not None:
            return
        before, others = cpu_seconds(self.pid), _ended_children_s()
        self.process.send_signal(self._stop_signal)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"a server did not stop in 60 s: {self.state()}") from None
        self.stop_cpu_s = _ended_children_s() - others - before
        assert self.process.stdout
        self.process.stdout.close()
        self._errors.close()


def _ended_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def pin(core: int) -> None:
    """Keep the process on `core`, where the machine has that many and lets us."""
    if core < (os.cpu_count() or 1):
        with suppress(AttributeError, OSError):
            os.sched_setaffinity(0, {core})


@contextmanager
def ahead_of_others(*pids: int) -> Iterator[None]:
    """Let trees of processes run before any other work on the machine, where the system lets us.

    What is timed in fractions of a millisecond would otherwise be the neighbours' time slices. Only for
    loads that leave their core idle most of the time.
    """
    try:
        for pid in pids:
            _set_real_time(pid, True)
        yield
    finally:
        for pid in pids:
            _set_real_time(pid, False)


def _set_real_time(pid: int, wanted: bool) -> None:
    """Every thread of a tree; those that begin later inherit it."""
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            for thread in process.threads():
                set_real_time(thread.id, wanted)


def set_real_time(thread: int, wanted: bool = True) -> None:
    """One thread; 0 is the caller's own."""
    if sys.platform == "linux":
        policy = os.SCHED_RR if wanted else os.SCHED_OTHER
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(int(wanted)))


def may_be_ahead() -> bool:
    """Whether `ahead_of_others` does anything here."""
    set_real_time(0)
    allowed = sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_RR
    set_real_time(0, False)
    return allowed


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system time of the process tree, of children that have ended too."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def settled_cpu_seconds(pid: int, limit: float = 10) -> float:
    """The same once the tree is idle, so that work put off until later is counted as well."""
    end = time.monotonic() + limit
    before = cpu_seconds(pid)
    while time.monotonic() < end:
        time.sleep(0.25)
        after = cpu_seconds(pid)
        if after - before <= 0.02:
            return after
        before = after
    return before


def resident_bytes(pid: int) -> int:
    """Memory of the tree; a page that several of its processes map counts once (proportional size)."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += int(rollup.split("Pss:")[1].split()[0]) * 1024
    return total


class Peak:
    bytes = 0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """The most memory the tree held at any sample, or its root ever."""
    peak, stop = Peak(), threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            peak.bytes = max(peak.bytes, resident_bytes(pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peak
    finally:
        stop.set()
        sampler.join()
    peak.bytes = max(peak.bytes, high_water(pid))


def high_water(pid: int) -> int:
    """The most memory a process held; unlike `ru_maxrss` without that of the process it was forked from."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
