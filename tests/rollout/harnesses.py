"""Small programs in the place of agents, and what it takes to run them.

with Stage(tmp_path) as stage:
    state = stage.run(stage.agent("call(); write('answer.txt', '42')"), score="cat answer.txt")
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from gyre.proxy import read_log
from gyre.proxy.log.folder import Folder
from gyre.proxy.serve.address import announce, withdraw
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.record import Record
from gyre.trainer.rollout.run import run_execution
from gyre.trainer.rollout.state import State
from tests.engines.fake import FakeEngine
from tests.engines.script import Script
from tests.proxy.running import RunningProxy

PRELUDE = """
import http.client, json, os, signal, subprocess, sys, time, urllib.parse

def call(text="hi"):
    url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": text}]})
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    connection.request("POST", url.path + "/chat/completions", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()

def write(name, text):
    with open(name, "w") as file:
        file.write(text)

"""


def write_agent(folder: Path, text: str, name: str = "agent.py") -> list[str]:
    """The command of an agent that does what `text` says in Python."""
    path = folder / name
    path.write_text(PRELUDE + text + "\n")
    return [sys.executable, "-S", str(path)]


def alive(marked: str) -> list[int]:
    """Processes that have this in their command line or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                texts = [*process.cmdline(), *process.environ().values()]
                if any(marked in text for text in texts):
                    found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


class Stage:
    """An engine, a proxy in front of it, and a folder for runs."""

    def __init__(self, folder: Path, script: Script | None = None, **flags: Any) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.engine = FakeEngine(script=script)
        self.stop = threading.Event()
        self._flags = flags

    def __enter__(self) -> Stage:
        self.engine.start()
        self.proxy = RunningProxy(self.folder / "logs", self.engine, **self._flags)
        self.proxy.__enter__()
        announce(Folder(self.proxy.logs), self.proxy.url)
        self.control = Control(self.proxy.url, self.proxy.logs)
        self.record = Record(self.control, patience_s=0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        withdraw(Folder(self.proxy.logs))
        self.proxy.__exit__(kind, error, trace)
        self.engine.stop()

    def agent(self, text: str) -> list[str]:
        return write_agent(self.folder, text)

    def options(self, command: Sequence[str], **more: Any) -> Options:
        return Options(runs=self.runs, command=command, **more)

    def run(self, command: Sequence[str], name: str = "e1", **more: Any) -> State:
        return run_execution(Job(name), self.options(command, **more), self.record, self.stop)

    def events(self, name: str = "e1") -> list[dict[str, Any]]:
        """What the log says of it, without what is null."""
        return events_of(self.proxy.logs, name)


def events_of(logs: Path, name: str) -> list[dict[str, Any]]:
    """The events of an execution, without what is null and what differs from run to run."""
    rows = read_log(logs, executions={name}).executions.to_pylist()
    hidden = ("order", "worker", "at", "execution_id")
    return [{k: v for k, v in row.items() if k not in hidden and v is not None} for row in rows]


def said(events: Sequence[dict[str, Any]]) -> list[tuple[int, str, str | None, float | None]]:
    """(attempt, event, outcome, score) of each."""
    names = ("execution_attempt", "event", "outcome", "score")
    return [tuple(event.get(name) for name in names) for event in events]  # type: ignore[misc]


@contextmanager
def thread(work: Any) -> Iterator[threading.Thread]:
    """Something in the background for the length of the block."""
    running = threading.Thread(target=work)
    running.start()
    try:
        yield running
    finally:
        running.join(30)
        assert not running.is_alive()
