"""Messages between the supervisor and a worker, over a socket pair that both were born with.

A frame is a length (4 bytes, big-endian) and msgpack. Each side may `ask` the other for an
answer, or `tell` it something. Requests are taken up in the order they were sent. The end of the
stream means that the other process is gone, and is how each learns of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gyre.proxy.commands import Command
from gyre.proxy.errors import GyreError
from gyre.proxy.serve.logs import LogFormat
from gyre.proxy.settings import ProxySettings
from gyre.proxy.status import ExecutionQuery, Status

log = logging.getLogger(__name__)

SealReport = dict[str, Any] | None
"""What a seal did; None when it failed (the log says why)."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker: what to serve, and how to catch up with the others."""

    settings: ProxySettings
    replay: list[Command]
    log_format: LogFormat
    log_level: int


class Serve(msgspec.Struct, frozen=True, tag=True):
    """To a worker: accept calls. What was said before is carried out by then."""


class Apply(msgspec.Struct, frozen=True, tag=True):
    """To a worker: carry this out."""

    command: Command


class Poll(msgspec.Struct, frozen=True, tag=True):
    """To a worker: send a `Report` before the answer to this."""


class Seal(msgspec.Struct, frozen=True, tag=True):
    """To a worker: rotate and seal."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """From a worker: its numbers, and the executions that changed since its last report."""

    status: Status


class Submit(msgspec.Struct, frozen=True, tag=True):
    """From a worker: have all workers carry this out."""

    command: Command


class Ask(msgspec.Struct, frozen=True, tag=True):
    """From a worker: how are all workers?"""

    query: ExecutionQuery


class SealAll(msgspec.Struct, frozen=True, tag=True):
    """From a worker: have all workers rotate and seal."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """Answer to whatever gives nothing back."""


class Sealed(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Seal` and `SealAll`."""

    reports: list[SealReport]


class Failed(msgspec.Struct, frozen=True, tag=True):
    message: str
    hint: str = ""


Message = Start | Serve | Apply | Poll | Seal | Report | Submit | Ask | SealAll | Done | Sealed | Failed
Handler = Callable[[Message], Awaitable[Message]]


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    id: int
    """The same in a request and its answer; 0 wants none."""
    answer: bool
    message: Message


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Envelope).decode


class Channel:
    """One end. `run` must be running for `ask` to get its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def ask(self, message: Message) -> asyncio.Future[Message]:
        """Send a request at once; the future is its answer, or a ConnectionError at the other's end."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        number = next(self._ids)
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._forget(number))
        if self._closed:
            answer.set_exception(_gone())
        else:
            self._send(_Envelope(number, False, message))
        return answer

    def tell(self, message: Message) -> None:
        self._send(_Envelope(0, False, message))

    async def run(self) -> None:
        """Take in messages until the other process closes its end or dies."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4))
                self._take(_decode(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # a killed process leaves half a frame or a reset behind; either is its end
        finally:
            self.close()

    def close(self) -> None:
        self._closed = True
        self._writer.close()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(_gone())

    async def flush(self) -> None:
        """Wait until what was sent is with the operating system, if the other still reads."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def _forget(self, number: int) -> None:
        answer = self._waiting.pop(number)
        if not answer.cancelled():
            # Looked at, so that asyncio does not complain of answers that nobody waited for.
            answer.exception()

    def _take(self, envelope: _Envelope) -> None:
        if not envelope.answer:
            task = asyncio.create_task(self._answer(envelope))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (answer := self._waiting.get(envelope.id)) and not answer.done():
            answer.set_result(envelope.message)

    async def _answer(self, envelope: _Envelope) -> None:
        try:
            message = await self._handler(envelope.message)
        except GyreError as error:
            message = Failed(error.message, error.hint)
        except Exception as error:
            # The other process waits for an answer; a bug here must not leave it waiting.
            log.exception("cannot carry out `%s`", type(envelope.message).__name__)
            message = Failed(str(error) or type(error).__name__)
        if envelope.id:
            self._send(_Envelope(envelope.id, True, message))

    def _send(self, envelope: _Envelope) -> None:
        data = _encode(envelope)
        if not self._closed:
            self._writer.write(len(data).to_bytes(4) + data)


def _gone() -> ConnectionError:
    return ConnectionResetError("the other process is gone")
