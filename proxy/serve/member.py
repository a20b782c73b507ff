"""One of several workers: `python -m gyre.proxy.serve.member LISTENER CHANNEL`, started by the supervisor.

The two numbers are descriptors it inherits; everything else comes over the channel, so no secret
stands on a command line. The channel's end means that the supervisor died: the worker stops
accepting at once, so that the port is free again, and ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sys

from gyre.proxy.control.plane import SupervisedPlane
from gyre.proxy.errors import LogError
from gyre.proxy.serve import logs
from gyre.proxy.serve.channel import Apply, Channel, Done, Message, Poll, Report, Seal, Sealed, Serve, Start
from gyre.proxy.serve.server import run, serve
from gyre.proxy.serve.stop import Stop
from gyre.proxy.status import execution_status
from gyre.proxy.worker import Worker

ORPHAN_S = 10.0
"""How long a worker whose supervisor died may finish its calls."""
_REPORT_S = 0.25
_PR_SET_PDEATHSIG = 1


class Member:
    """Does what the supervisor says and reports to it."""

    def __init__(self, listener: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.channel = Channel(reader, writer, self.handle)
        self.stop = Stop()
        self.shutdown_s = 0.0
        self.serving: asyncio.Task[None] | None = None
        self._listener = listener
        self._worker: Worker
        self._reported = 0

    async def live(self) -> None:
        """From the supervisor's first word to the end of the last call."""
        reading = asyncio.create_task(self.channel.run())
        reading.add_done_callback(lambda _: self.stop.within(min(self.shutdown_s, ORPHAN_S)))
        reporting = asyncio.create_task(self._keep_reporting())
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: self.stop.within(self.shutdown_s)
        )
        await self.stop.wanted.wait()
        reporting.cancel()
        if self.serving:
            try:
                await self.serving
            except LogError:
                # The supervisor has been told why, and closes the channel when it has heard it.
                await reading
            self._report()
            await self.channel.flush()

    async def handle(self, message: Message) -> Message:
        match message:
            case Start():
                self._start(message)
            case Serve():
                await self._serve()
            case Apply(command):
                self._worker.apply(command)
            case Poll():
                self._report()
            case Seal():
                return Sealed([await self._worker.recorder.rotate()])
            case _:
                raise TypeError(f"a worker knows no `{type(message).__name__}`")
        return Done()

    def _start(self, start: Start) -> None:
        logs.install(start.log_format, start.log_level)
        self.shutdown_s = start.settings.shutdown_s
        self._worker = Worker(start.settings)
        for command in start.replay:
            self._worker.apply(command)
        # What was replayed is the supervisor's own, and nothing new.
        self._reported = self._worker.executions.turn

    async def _serve(self) -> None:
        """Returns when it accepts."""
        accepting = asyncio.Event()
        plane = SupervisedPlane(self.channel)
        serving = asyncio.create_task(serve(self._worker, plane, self._listener, self.stop, accepting.set))
        self.serving = serving
        waiting = asyncio.create_task(accepting.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            self.stop.within(0)
            serving.result()

    def _report(self) -> None:
        """Sent as a message of its own and never as an answer: an answer that comes late is dropped."""
        executions = self._worker.executions
        changed = [execution_status(state) for state in executions.recent(self._reported)]
        self._reported = executions.turn
        self.channel.tell(Report(self._worker.snapshot(changed)))

    async def _keep_reporting(self) -> None:
        """So that little is forgotten of a worker that is killed."""
        while True:
            await asyncio.sleep(_REPORT_S)
            if self.serving:
                self._report()


async def _live(listener: socket.socket, pair: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=pair)
    await Member(listener, reader, writer).live()


def main(arguments: list[str]) -> int:
    listener, pair = (socket.socket(fileno=int(number)) for number in arguments)
    # Ctrl-C reaches the whole process group; when workers end is for the supervisor to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A second string to the channel's end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    run(_live(listener, pair))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
