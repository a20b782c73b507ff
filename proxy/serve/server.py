"""An HTTP server around the relay, from its listening socket to its graceful end.

`run_single` is the whole proxy with one worker; `supervisor` and `member` beside it are the proxy
with several.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop

from gyre.proxy.app import build
from gyre.proxy.control.plane import ControlPlane, LocalPlane
from gyre.proxy.errors import LogError
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.reading.before import commands_before
from gyre.proxy.log.record.lean import without_pandas
from gyre.proxy.process import allow_open_files
from gyre.proxy.serve import address
from gyre.proxy.serve.stop import Stop, stop_on_signals
from gyre.proxy.settings import ProxySettings
from gyre.proxy.worker import Worker

log = logging.getLogger(__name__)
_UNWIND_S = 2.0
"""How long calls that were cut at the end of a shutdown may take to be recorded."""


class _Server(uvicorn.Server):
    """uvicorn, without its signal handlers and with a way to cut what is open at the deadline."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
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
                backlog=address.BACKLOG,
                timeout_keep_alive=75,
            )
        )
        self.accepting = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.accepting.set()

    async def cut(self) -> None:
        """Cancel what is still open and let it be recorded."""
        tasks = set(self.server_state.tasks)
        if tasks:
            log.warning("%d requests are cut at the end of the shutdown limit", len(tasks))
            # uvicorn takes each of them for a bug of the application and shows a traceback.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_UNWIND_S)
        self.force_exit = True


async def serve(
    worker: Worker, plane: ControlPlane, listener: socket.socket, stop: Stop, accepting: Callable[[], None]
) -> None:
    """Serve until `stop`, then finish open calls, close the journal and seal it.

    Raises:
        LogError: the log folder cannot be written.
    """
    relay = build(worker, plane)
    try:
        await relay.start()
    except OSError as error:
        message = f"cannot write the log in `{worker.settings.logs}`: {error.strerror or error}"
        raise LogError(message) from error
    server = _Server(relay)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.accepting.wait()
    if not server.started:
        await serving
    _collect_rarely()
    accepting()
    await stop.wanted.wait()
    worker.stopping = True
    server.should_exit = True
    while not serving.done() and stop.left > 0:
        # In short steps, since the deadline may come nearer meanwhile.
        await asyncio.wait({serving}, timeout=min(stop.left, 0.2))
    await server.cut()
    await serving
    await relay.stop()


def _collect_rarely() -> None:
    """A call makes hundreds of objects and no cycle: the collector looks often and finds nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run_single(settings: ProxySettings, ready: Callable[[str], None]) -> int:
    """Run the proxy in this process until SIGINT or SIGTERM; `ready` gets its URL.

    Raises:
        ConfigError: the address cannot be used.
        LogError: the log folder cannot be used.
    """
    folder = create_folder(settings.logs)
    listener = address.listen(settings.host, settings.port)
    url = address.url_of(listener)

    def accepting() -> None:
        address.announce(folder, url)
        ready(url)

    async def main() -> None:
        stop = Stop()
        stop_on_signals(lambda: stop.within(settings.shutdown_s), lambda: address.withdraw(folder))
        worker = Worker(settings)
        for command in commands_before(folder):
            worker.apply(command)
        await serve(worker, LocalPlane(worker), listener, stop, accepting)

    try:
        run(main())
    finally:
        listener.close()
        address.withdraw(folder)
    return 0


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop, allowed enough open files: a call takes two."""
    without_pandas()
    allow_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
