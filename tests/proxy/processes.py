"""`gyre proxy` as a user starts it: a process of its own.

with ProxyProcess(tmp_path, engine.url, "--workers", "2") as proxy:
    proxy.chat()
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.process.wait(10) == 0
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class ProxyProcess:
    """Its log is `folder/logs`, what it says on stderr `stderr`."""

    def __init__(self, folder: Path, engine: str, *options: str, config: str = "") -> None:
        self.logs = folder / "logs"
        self._said = folder / "stderr.txt"
        (folder / "gyre.toml").write_text(config)
        self._command = [sys.executable, "-m", "gyre.cli.main", "proxy", "--upstream", engine]
        self._command += ["--logs", str(self.logs), "--config", str(folder / "gyre.toml"), "--json"]
        self._command += ["--port", "0", *options]
        self.url = ""
        self.process: subprocess.Popen[str]

    @property
    def stderr(self) -> str:
        return self._said.read_text()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "gyre.proxy.serve.member" in child.cmdline()]

    def chat(self, execution: str = "e1", **fields: Any) -> httpx.Response:
        """One call over a connection of its own, so that any worker may take it."""
        url = f"{self.url}/x/{execution}/v1/chat/completions"
        return httpx.post(url, json=HELLO | fields, timeout=30)

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=30).raise_for_status().json()

    def metric(self, name: str) -> float:
        """A number from the page; of several with labels their sum."""
        lines = httpx.get(self.url + "/metrics", timeout=30).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)

    def __enter__(self) -> ProxyProcess:
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
            )
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(10)
            self.process.stdout.close()
            raise RuntimeError(self.stderr)
        self.url = json.loads(line)["url"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            for worker in self.workers():
                worker.kill()
            self.process.kill()
            self.process.wait(10)
        assert self.process.stdout
        self.process.stdout.close()


class Stream(threading.Thread):
    """A streamed call in the background; `text` is what came of it."""

    def __init__(self, proxy: ProxyProcess) -> None:
        super().__init__()
        self.text = ""
        self.error: httpx.TransportError | None = None
        self.begun = threading.Event()
        self._url = f"{proxy.url}/x/streamed/v1/chat/completions"
        self.start()
        assert self.begun.wait(10)

    def run(self) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
        try:
            with httpx.stream("POST", self._url, json=body, timeout=30) as response:
                for text in response.iter_text():
                    self.text += text
                    self.begun.set()
        except httpx.TransportError as error:
            self.error = error


def wait_for(condition: Callable[[], object], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listens_nowhere(port: int) -> bool:
    """Whether another server could have the port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def end(proxy: ProxyProcess, number: signal.Signals = signal.SIGTERM) -> int:
    proxy.process.send_signal(number)
    return proxy.process.wait(30)
