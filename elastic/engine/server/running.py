"""An ASGI application on a loopback port, in a thread of its own, until a block is left."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gyre.proxy.errors import EngineError

_BACKLOG = 1024
_UNWIND_S = 1.0
"""How long the server may take to tell clients that it stops."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs the engine decides when it ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. EngineError names an address that cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        hint = "`--port 0` takes a free one"
        raise EngineError(f"cannot listen on {host}:{port}: {error.strerror}", hint) from error


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def running(app: ASGIApp, listener: socket.socket, cut: Callable[[], None]) -> Iterator[None]:
    """Serve `app` within the block.

    At its end `cut` is called on the event loop, for the application to let go of all requests; answers
    that have begun break off then, as if the process had died.
    """
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
    )
    runner = _Thread(_Server(config), listener, cut)
    runner.start()
    try:
        yield
    finally:
        runner.stop()


class _Thread(threading.Thread):
    """The event loop."""

    def __init__(self, server: _Server, listener: socket.socket, cut: Callable[[], None]) -> None:
        super().__init__(name="gyre-engine-http", daemon=True)
        self._server, self._listener, self._cut = server, listener, cut
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._wanted = asyncio.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        """Answers that are open break off; returns when the loop has ended."""
        self._loop.result().call_soon_threadsafe(self._wanted.set)
        self.join()

    async def _serve(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        await self._wanted.wait()
        self._cut()
        self._break_off()
        self._server.should_exit = True
        await asyncio.wait({serving}, timeout=_UNWIND_S)
        for connection in self._connections():
            connection.transport.abort()  # its client does not read
        await asyncio.wait({serving}, timeout=_UNWIND_S)
        self._server.force_exit = True
        await serving

    def _break_off(self) -> None:
        """Close connections in the middle of their answers: a chunked body without its end is no answer."""
        for connection in self._connections():
            cycle = connection.cycle
            if cycle and cycle.response_started and not cycle.response_complete:
                connection.transport.close()

    def _connections(self) -> list[HttpToolsProtocol]:
        open_ = self._server.server_state.connections
        return [connection for connection in open_ if isinstance(connection, HttpToolsProtocol)]
