"""A scripted fake inference engine: a real HTTP server on a loopback port.

    with FakeEngine(kind="vllm", script=Answer(text="hello")) as engine:      # in a thread
        httpx.post(engine.url + "/v1/chat/completions", json={...})
        assert engine.requests[0].json["return_token_ids"] is True

    async with FakeEngine(script=[Answer(cut_after=3), Answer()]) as engine:  # in this loop

`python -m tests.engines.fake --kind sglang` serves from a process of its own and prints the URL.
Raw asyncio and no framework, so that it can misbehave below HTTP too: see `Answer` in
`tests.engines.script` for what can be scripted. It answers `/v1/chat/completions` and
`/v1/completions` from the script, an engine's other routes by itself, and any path in `routes`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

from tests.engines.connection import Connection
from tests.engines.routes import Kind, side_answer
from tests.engines.script import Answer, Request, Script
from tests.engines.shapes import dump, refusal

GENERATING = ("/v1/chat/completions", "/v1/completions")


class FakeEngine:
    """The server. `script` and `routes` may be replaced while it runs."""

    def __init__(
        self,
        *,
        kind: Kind = "vllm",
        script: Script | None = None,
        routes: Mapping[str, Script] | None = None,
        model: str = "fake",
        port: int = 0,
    ) -> None:
        self.kind: Kind = kind
        self.model = model
        self.script: Script = Answer() if script is None else script
        self.routes = dict(routes or {})
        self.port = port
        self.requests: list[Request] = []
        self.open_streams = 0
        """Answers under way at this moment."""
        self.peak_open = 0
        self.connects = 0
        self.connections: set[Connection] = set()
        self.problems: list[BaseException] = []
        """Errors of the script itself; stopping the engine raises the first."""
        self._turns: dict[int, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> list[Request]:
        """The requests for a generation only, without probes and tokenizing."""
        return [request for request in self.requests if request.route in GENERATING]

    @property
    def disconnects(self) -> list[float]:
        """When (monotonic clock) clients left answers that were not finished."""
        return [r.disconnected_at for r in self.requests if r.disconnected_at is not None]

    def wait_until(self, condition: Callable[[FakeEngine], bool], timeout: float = 5) -> None:
        """Block the calling thread until `condition(engine)` holds; TimeoutError if it never does."""
        end = time.monotonic() + timeout
        while not condition(self):
            if time.monotonic() > end:
                raise TimeoutError("the fake engine never got there")
            time.sleep(0.002)

    async def __aenter__(self) -> FakeEngine:
        await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()
        if exc[0] is None:
            self._raise_problem()

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: Connection(self), "127.0.0.1", self.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        tasks = [c.task for c in self.connections if c.task]
        for connection in list(self.connections):
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _raise_problem(self) -> None:
        if self.problems:
            raise self.problems.pop(0)

    def start(self) -> FakeEngine:
        """Serve from a background thread with a loop of its own until `stop`."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve_thread()), daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise TimeoutError("the fake engine did not start")
        return self

    def stop(self) -> None:
        """Close the port and every connection: what a killed engine looks like to a client."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(10)
            self._raise_problem()

    def __enter__(self) -> FakeEngine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve_thread(self) -> None:
        self._stopped = asyncio.Event()
        await self._open()
        self._ready.set()
        await self._stopped.wait()
        await self._close()

    def drop_idle(self) -> None:
        """Close the kept-alive connections that carry no answer now, as a restarted engine does."""
        self._loop.call_soon_threadsafe(self._drop_idle)

    def _drop_idle(self) -> None:
        for connection in list(self.connections):
            if connection.request is None:
                connection.close()

    def answer_to(self, request: Request) -> Answer:
        """The scripted answer: `routes` first, then the script, then what the kind of engine says."""
        if request.route in self.routes:
            return self._next(self.routes[request.route], request)
        if request.route in GENERATING and not request.is_json:
            return Answer(status=400, text="the body is not JSON")
        if request.route in GENERATING:
            why = refusal(self.kind, request.json)
            return Answer(status=400, text=why) if why else self._next(self.script, request)
        said = side_answer(self.kind, self.model, request)
        return Answer(status=404, text="Not Found") if said is None else Answer(body=dump(said))

    def _next(self, script: Script, request: Request) -> Answer:
        if isinstance(script, Answer):
            return script
        if callable(script):
            return script(request)
        turn = self._turns.get(id(script), 0)
        self._turns[id(script)] = turn + 1
        return script[min(turn, len(script) - 1)]


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """A URL that never accepts: the queue of its listener is full, so connects hang."""
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def refused_url() -> str:
    """A URL on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def _serve_forever(engine: FakeEngine) -> None:
    async with engine:
        print(engine.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A scripted fake inference engine.")
    options.add_argument("--kind", default="vllm", choices=["vllm", "gyre", "sglang", "llamacpp", "text"])
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--text", default="ok")
    options.add_argument("--gap", type=float, default=0, help="seconds before each streamed event")
    chosen = options.parse_args()
    scripted = Answer(text=chosen.text, gap=chosen.gap)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(FakeEngine(kind=chosen.kind, script=scripted, port=chosen.port)))
