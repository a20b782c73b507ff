"""A proxy with real sockets, in a thread of the test's own process.

with FakeEngine(script=Answer(text="hello")) as engine, RunningProxy(tmp_path, engine) as proxy:
    httpx.post(proxy.base("e1") + "/chat/completions", json=...)
    assert proxy.rows()[0].outcome == "ok"
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import uvicorn
import uvloop

from gyre.proxy.app import build
from gyre.proxy.calls import CallRecord, Record
from gyre.proxy.control.plane import LocalPlane
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.record.journal import Opener, open_new
from gyre.proxy.relay import Relay
from gyre.proxy.settings import load_settings
from gyre.proxy.worker import Worker
from tests.engines.fake import FakeEngine

T = TypeVar("T")


class RunningProxy:
    """Settings are given as flags: `RunningProxy(tmp_path, engine, **{"timeouts.idle": 0.2})`.

    `ready`: wait until a backend serves; not for engines that are down on purpose.
    `opener` opens the journal's segments, on a disk that may be full.
    """

    def __init__(
        self,
        logs: Path,
        *engines: FakeEngine | str,
        ready: bool = True,
        opener: Opener = open_new,
        **flags: Any,
    ) -> None:
        urls = [engine if isinstance(engine, str) else engine.url for engine in engines]
        flags.setdefault("backends", [{"url": url} for url in urls])
        flags.setdefault("shutdown_s", 2.0)
        self.logs = logs
        self.settings = load_settings(None, {"logs": str(logs), **flags})
        self.url = ""
        self._ready = ready
        self._opener = opener
        self.worker: Worker
        self.relay: Relay
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._failure: BaseException | None = None

    def base(self, execution: str = "e1") -> str:
        """What a harness would be given as OPENAI_BASE_URL."""
        return f"{self.url}/x/{execution}/v1"

    def chat(self, execution: str = "e1", **body: Any) -> httpx.Response:
        """One chat call; streams are read to their end."""
        headers = body.pop("headers", None)
        body.setdefault("model", "fake")
        body.setdefault("messages", [{"role": "user", "content": "hi"}])
        return self.post(self.base(execution) + "/chat/completions", json=body, headers=headers)

    def post(self, url: str, **how: Any) -> httpx.Response:
        """`verify` is for TLS alone, but the list of authorities would be read, which takes 25 ms."""
        return httpx.post(url, verify=False, **{"timeout": 30, **how})

    def records(self) -> list[Record]:
        """Everything in the journal, in commit order."""
        found = [r for path in (self.logs / "journal").iterdir() for r in scan(path, Damage())]
        return sorted(found, key=lambda record: record.order)

    def rows(self, count: int = 1) -> list[CallRecord]:
        """The call rows; waits a little for `count` of them, since some end after the client left."""
        end = time.monotonic() + 5
        while True:
            rows = [record for record in self.records() if isinstance(record, CallRecord)]
            if len(rows) >= count or time.monotonic() > end:
                return rows
            time.sleep(0.02)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the proxy's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> RunningProxy:
        self._thread.start()
        self._started.wait(10)
        if self._failure:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(15)
        if self._failure:
            raise self._failure

    def _main(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # carried to the test's thread
            self._failure = error
            self._started.set()

    async def _serve(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await self._serve_on(listener)

    async def _serve_on(self, listener: socket.socket) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.worker = Worker(self.settings, self._opener)
        relay = self.relay = build(self.worker, LocalPlane(self.worker))
        config = uvicorn.Config(
            relay, http="httptools", loop="none", ws="none", lifespan="off", access_log=False, log_config=None
        )
        # Its own `serve` and `shutdown` sleep for 0.1 s each.
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await relay.start()
        await server.startup(sockets=[listener])
        if self._ready and self.worker.router.backends:
            await asyncio.wait_for(self.worker.available.wait(), 5.0)
        self._started.set()
        await self._stop.wait()
        await relay.stop(seal=False)
        server.servers[0].close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        await server.servers[0].wait_closed()


def events_of(response: httpx.Response) -> Sequence[bytes]:
    """The data of each streamed event."""
    return [line[6:].encode() for line in response.text.splitlines() if line.startswith("data: ")]


def until_cut(proxy: RunningProxy, **body: Any) -> tuple[bytes, bool]:
    """What came of a call before its connection broke, and whether it did."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True} | body
    came = b""
    with httpx.stream("POST", proxy.base() + "/chat/completions", json=body, timeout=30) as answer:
        try:
            for chunk in answer.iter_raw():
                came += chunk
        except httpx.RemoteProtocolError:
            return came, True
    return came, False
