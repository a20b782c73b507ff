"""`gyre engine --model tiny` as processes of their own, which can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

COMMAND = [sys.executable, "-m", "gyre.cli.main", "engine", "--model", "tiny", "--threads", "1", "--json"]


@dataclass(frozen=True)
class EngineProcess:
    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Not even its threads hear of it."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@contextmanager
def engine_processes(count: int) -> Iterator[list[EngineProcess]]:
    """They start side by side: most of it is reading torch."""
    processes = [
        subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(count)
    ]
    try:
        yield [EngineProcess(_url(process), process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
            assert process.stdout
            process.stdout.close()


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline()
    assert line, "the engine did not start"
    url: str = json.loads(line)["url"]
    return url
