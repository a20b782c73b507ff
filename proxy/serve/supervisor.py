"""Several workers on one port: `run_supervised` is the parent process that outlives any one of them.

It owns the listening socket, what all workers agree on and the counters of those that died
(`gyre.proxy.serve.crew`); it relays no call. A worker that dies is started again; if the parent dies, its
workers learn it from their end of a socket pair and end too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from gyre.proxy.errors import GyreError
from gyre.proxy.log.folder import Folder, create_folder
from gyre.proxy.log.reading.before import commands_before
from gyre.proxy.serve import address
from gyre.proxy.serve.crew import Crew
from gyre.proxy.serve.logs import LogFormat
from gyre.proxy.serve.stop import stop_on_signals
from gyre.proxy.settings import ProxySettings

log = logging.getLogger(__name__)
Process = asyncio.subprocess.Process
_MARGIN_S = 30.0
"""What a worker gets beyond the shutdown limit to close and seal its journal."""
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 10.0
_PROVEN_S = 30.0
"""A worker that lived so long was no failed start: the next one need not wait."""


def run_supervised(
    settings: ProxySettings,
    ready: Callable[[str], None],
    log_format: LogFormat = "text",
    log_level: int = logging.WARNING,
) -> int:
    """Run the proxy with `settings.workers` processes until SIGINT or SIGTERM; `ready` gets its URL.

    Raises:
        ConfigError: the address cannot be used.
        LogError: the log folder cannot be used.
        GyreError: the workers do not start.
    """
    folder = create_folder(settings.logs)
    listener = address.listen(settings.host, settings.port)
    crew = Crew(settings, log_format, log_level, commands_before(folder))
    supervisor = _Supervisor(settings, folder, listener, ready, crew)
    try:
        asyncio.run(supervisor.run())
    finally:
        listener.close()
        address.withdraw(folder)
    return 0


class _Supervisor:
    def __init__(
        self,
        settings: ProxySettings,
        folder: Folder,
        listener: socket.socket,
        ready: Callable[[str], None],
        crew: Crew,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._listener = listener
        self._ready = ready
        self._crew = crew
        self._url = address.url_of(listener)
        self._processes: set[Process] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until a signal, or until the first workers turn out not to start."""
        stop_on_signals(self._stopping.set, self._end_at_once)
        loop = asyncio.get_running_loop()
        first: list[asyncio.Future[None]] = [loop.create_future() for _ in range(self._settings.workers)]
        keepers = [asyncio.create_task(self._keep(number, started)) for number, started in enumerate(first)]
        stopping = asyncio.create_task(self._stopping.wait())
        all_started = asyncio.gather(*first)
        try:
            await _first_of(stopping, all_started, *keepers)
            if all_started.done():
                all_started.result()
                address.announce(self._folder, self._url)
                self._ready(self._url)
            await _first_of(stopping, *keepers)
        finally:
            all_started.cancel()
            await self._end(keepers)
        for keeper in keepers:
            keeper.result()

    async def _keep(self, number: int, started: asyncio.Future[None]) -> None:
        """Have worker `number` run, again and again; `started` tells of its first start."""
        failures = 0
        while not self._stopping.is_set():
            born = time.monotonic()
            end = await self._one_life(started)
            if self._stopping.is_set():
                return
            if not started.done():
                started.set_exception(GyreError(f"worker {number} {end}", end.hint))
                return
            failures = 0 if time.monotonic() - born > _PROVEN_S else failures + 1
            delay = min(_FIRST_DELAY_S * 2 ** (failures - 1), _LONGEST_DELAY_S) if failures else 0.0
            log.error("worker %d %s; starting another in %.1f s", number, end, delay)
            await self._sleep(delay)

    async def _one_life(self, started: asyncio.Future[None]) -> GyreError:
        """A worker process from its start to its end; returns how it ended."""
        ours, theirs = socket.socketpair()
        try:
            process = await self._spawn(theirs)
        except OSError as error:
            ours.close()
            return GyreError(f"cannot be started: {error.strerror or error}")
        finally:
            theirs.close()
        self._processes.add(process)
        if self._stopping.is_set():
            process.terminate()
        hand = self._crew.join(*await asyncio.open_unix_connection(sock=ours))
        reading = asyncio.create_task(hand.channel.run())
        refusal = None
        try:
            await hand.serve()
            if not started.done():
                started.set_result(None)
        except ConnectionError:
            pass  # it died; how, the process says
        except GyreError as error:
            refusal = GyreError(f"cannot start: {error.message}", error.hint)
            hand.channel.close()
        await process.wait()
        await reading
        self._crew.leave(hand)
        self._processes.discard(process)
        return refusal or _end_of(process)

    async def _spawn(self, theirs: socket.socket) -> Process:
        descriptors = (self._listener.fileno(), theirs.fileno())
        return await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: modules of the folder that gyre was started in are not for us.
            "-P",
            "-m",
            "gyre.proxy.serve.member",
            *map(str, descriptors),
            pass_fds=descriptors,
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        """Let all workers end gracefully, and kill those that do not."""
        self._stopping.set()
        self._listener.close()
        self._signal(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=self._settings.shutdown_s + _MARGIN_S)
        if late:
            log.error("%d workers did not end in time and are killed", len(self._processes))
            self._signal(signal.SIGKILL)
            await asyncio.wait(late)

    def _end_at_once(self) -> None:
        self._signal(signal.SIGKILL)
        address.withdraw(self._folder)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(number)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _end_of(process: Process) -> GyreError:
    code = process.returncode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return GyreError(f"(process {process.pid}) {how}")
