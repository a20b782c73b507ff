"""CPU time of a run by kind of process. What lives as long as the run is looked at while it does; agents and
scorers are too short-lived for that, so theirs is what is left of the total.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

TRAINER, PROXY, ENGINE, REST = "trainer", "proxy", "engine", "agents and scorers"
_SEALING = "gyre.proxy.log.sealing.seal"
"""A process that the proxy starts, and that lives for a second or so: the last tenth of it is not seen."""
_EVERY_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of user and system time."""

    total: float
    by_kind: dict[str, float]


def kind_of(arguments: Sequence[str]) -> str:
    """Of a process that is not the run itself, by its command line."""
    if _SEALING in arguments:
        return PROXY
    words = [argument for argument in arguments if argument in (PROXY, ENGINE)]
    ours = any("gyre" in argument for argument in arguments)
    return words[0] if ours and words else REST


class Watch:
    """Looks at a process and those below it until it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._root = psutil.Process(process.pid)
        self._seen: dict[psutil.Process, tuple[str, float]] = {}
        """Long-lived ones: their kind, and the last that was seen of their time."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def wait(self) -> tuple[int, Spent]:
        """Exit status and what was spent, when it has ended."""
        # Whatever it has waited for is counted with it: with all supervisors, that is everything.
        _, status, usage = os.wait4(self._root.pid, 0)
        self._over.set()
        self._thread.join()
        return os.waitstatus_to_exitcode(status), self._sum(usage.ru_utime + usage.ru_stime)

    def _sum(self, total: float) -> Spent:
        kinds = dict.fromkeys((TRAINER, PROXY, ENGINE), 0.0)
        for kind, spent in self._seen.values():
            kinds[kind] += spent
        return Spent(total=total, by_kind=kinds | {REST: max(0.0, total - sum(kinds.values()))})

    def _look_on(self) -> None:
        while not self._over.wait(_EVERY_S):
            with suppress(psutil.NoSuchProcess):
                self._look(self._root, TRAINER)
                for process in self._root.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        kind = self._seen[process][0] if process in self._seen else kind_of(process.cmdline())
                        if kind != REST:
                            self._look(process, kind)

    def _look(self, process: psutil.Process, kind: str) -> None:
        times = process.cpu_times()
        self._seen[process] = (kind, times.user + times.system)
