"""The HTTP/1.1 of the fake engine: requests in, scripted bytes out, below any framework."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from tests.engines.script import Answer, Request
from tests.engines.shapes import Shape, error

if TYPE_CHECKING:
    from tests.engines.fake import FakeEngine


class _CutError(Exception):
    """The script says that this connection ends here."""


class Connection(asyncio.Protocol):
    """One client connection: requests in, scripted bytes out, one answer at a time."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.buffer = bytearray()
        self.request: Request | None = None
        self.task: asyncio.Task[None] | None = None
        self.answered = 0
        self.ours = False
        """We closed it: not a disconnect of the client."""
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.engine.connects += 1
        self.engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        if self.request and not self.ours:
            self.request.disconnected_at = time.monotonic()
        if self.task:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def close(self, *, flush: bool = False) -> None:
        self.ours = True
        if flush:
            self.transport.close()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._begin_next()

    def _begin_next(self) -> None:
        if self.request is not None:
            return
        request = take_request(self.buffer, reused=self.answered > 0)
        if request is None:
            return
        self.request = request
        self.engine.requests.append(request)
        self.task = asyncio.get_running_loop().create_task(self._answer(request))
        self.task.add_done_callback(self._report)

    def _report(self, task: asyncio.Task[None]) -> None:
        """A bug in a script must fail the test, not leave its client waiting."""
        if not task.cancelled() and (problem := task.exception()):
            self.engine.problems.append(problem)
            self.close()

    async def _answer(self, request: Request) -> None:
        engine = self.engine
        engine.open_streams += 1
        engine.peak_open = max(engine.peak_open, engine.open_streams)
        try:
            answer = engine.answer_to(request)
            await self._send(request, answer)
        except _CutError:
            return
        finally:
            engine.open_streams -= 1
        self.request, self.task = None, None
        self.answered += 1
        if answer.close:
            self.close(flush=True)
        elif answer.drop_idle is not None:
            asyncio.get_running_loop().call_later(answer.drop_idle, self.close)
        else:
            self._begin_next()

    async def _send(self, request: Request, answer: Answer) -> None:
        await asyncio.sleep(answer.delay)
        await self._misbehave(answer, 0)
        if answer.raw is not None:
            self.transport.write(answer.raw)
            self.close(flush=True)
            raise _CutError
        head, parts = self._render(request, answer)
        chunked = b"transfer-encoding" in head
        self.transport.write(head)
        async for part in self._paced(answer, parts):
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            request.parts_sent += 1
            await self.writable.wait()
        if answer.cut_bytes is not None:
            self.close(flush=True)
            raise _CutError
        if chunked:
            self.transport.write(b"0\r\n\r\n")

    async def _paced(self, answer: Answer, parts: Iterable[bytes]) -> AsyncIterator[bytes]:
        """The parts in the time and the sizes that the script asks for."""
        left = answer.cut_bytes
        for number, part in enumerate(parts, 1):
            await asyncio.sleep(answer.gap)
            cut = part if left is None else part[:left]
            size = answer.split or len(cut)
            for at in range(0, len(cut), size or 1):
                if at:
                    await asyncio.sleep(0)
                yield cut[at : at + size]
            if left is not None and (left := left - len(cut)) <= 0:
                return
            await self._misbehave(answer, number)

    async def _misbehave(self, answer: Answer, parts_sent: int) -> None:
        """Hang or cut when so many parts are out; what was written before a cut is still delivered."""
        if answer.hang_after == parts_sent:
            await asyncio.Event().wait()
        if answer.cut_after == parts_sent:
            self.close(flush=parts_sent > 0)
            raise _CutError

    def _render(self, request: Request, answer: Answer) -> tuple[bytes, Iterable[bytes]]:
        engine = self.engine
        fixed, parts = self._content(request, answer, len(engine.calls))
        if answer.gzip:
            parts = _compressed(parts, whole=answer.gzip == "whole")
        headers = {"content-type": "application/json" if fixed else "text/event-stream; charset=utf-8"}
        if answer.gzip:
            headers["content-encoding"] = "gzip"
        if fixed:
            parts = list(parts)
            headers["content-length"] = str(sum(map(len, parts)))
        else:
            headers["transfer-encoding"] = "chunked"
        if answer.close:
            headers["connection"] = "close"
        headers.update(answer.headers)
        lines = [f"HTTP/1.1 {answer.status} {_reason(answer.status)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1"), parts

    def _content(self, request: Request, answer: Answer, number: int) -> tuple[bool, Iterable[bytes]]:
        """(is the length known, the parts of the body)."""
        engine = self.engine
        if answer.body is not None and not isinstance(answer.body, bytes):
            return False, answer.body
        if isinstance(answer.body, bytes):
            whole = answer.body
        elif answer.status >= 400:
            whole = error(answer.status, answer.text)
        else:
            shape = Shape(engine.kind, engine.model, number, request, answer)
            if request.json.get("stream"):
                return False, _commented(answer.comment, shape.events())
            whole = shape.plain()
        half = (len(whole) + 1) // 2
        return True, [whole[:half], whole[half:]]


def _commented(comment: bytes, events: Iterable[bytes]) -> Iterator[bytes]:
    return (comment + event for event in events)


def _compressed(parts: Iterable[bytes], *, whole: bool) -> Iterator[bytes]:
    """Gzip, flushed after each part; if not whole, the stream lacks its end."""
    packer = zlib.compressobj(wbits=31)
    for part in parts:
        yield packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)
    if whole:
        yield packer.flush()


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def take_request(buffer: bytearray, *, reused: bool) -> Request | None:
    """Cut the first complete request off the buffer; None while it is not complete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    found = _take_body(buffer, end + 4, headers)
    if found is None:
        return None
    body, after = found
    del buffer[:after]
    return Request(method=method, path=path, headers=headers, body=body, reused=reused)


def _take_body(buffer: bytearray, start: int, headers: dict[str, str]) -> tuple[bytes, int] | None:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _take_chunks(buffer, start)
    end = start + int(headers.get("content-length", 0))
    return (bytes(buffer[start:end]), end) if len(buffer) >= end else None


def _take_chunks(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    body = bytearray()
    while (line := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:line].split(b";")[0], 16)
        start, at = line + 2, line + 4 + size
        if len(buffer) < at:
            return None
        if size == 0:
            return bytes(body), at
        body += buffer[start : start + size]
    return None
