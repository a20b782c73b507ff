"""An answer on its way: plain or as server-sent events, until it is told or nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gyre.elastic.engine.server.calls import Call
from gyre.elastic.engine.server.errors import answer_of, body_of
from gyre.elastic.engine.server.frame import Frame
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.server.wire import News, Wire
from gyre.proxy.errors import RequestError
from gyre.proxy.sse import event_of

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(kw_only=True, slots=True)
class Answer:
    """The ASGI response for a call that was begun; sees when the client leaves, and lets the engine know."""

    call: Call
    frame: Frame
    wire: Wire
    digests: Callable[[], Awaitable[dict[str, str]]]
    """Digest of the weights of every version that the engine served."""
    leave: Callable[[Call], None]
    finished: Callable[[int, Output], None]
    """A choice is complete; called before the client can know."""
    _told: set[str] = field(default_factory=set)
    """Versions whose digests the client has."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self.call.watch(receive))
        try:
            if self.call.stream:
                await self._stream(send)
            else:
                await self._plain(scope, receive, send)
        finally:
            watcher.cancel()
            self.leave(self.call)

    async def _plain(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not (self.call.settled or self.call.gone):
            await self.call.news.wait()
            self.call.news.clear()
        if self.call.gone:
            return
        if self.call.error is not None:
            answer = answer_of(failed(self.call.error))
        else:
            answer = Response(orjson.dumps(await self._whole()), media_type="application/json")
        await answer(scope, receive, send)

    async def _whole(self) -> Json:
        choices = []
        for index, output in enumerate(self.call.outputs):
            assert output.finish
            self.finished(index, output)
            choices.append(self.wire.choice(self.frame, index, output, output.finish))
        return {
            **self.frame.top(self.wire.whole_kind),
            "choices": choices,
            "usage": self.frame.usage(self.call),
            **self.wire.top(self.frame, self.call.outputs),
            **await self._metadata(),
        }

    async def _stream(self, send: Send) -> None:
        headers = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for data in self._events():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        streams = [_ChoiceStream(output) for output in self.call.outputs]
        first = True
        while not all(stream.ended for stream in streams):
            if not self.call.settled:
                await self.call.news.wait()
            self.call.news.clear()
            if self.call.gone:
                return
            if self.call.error is not None:
                yield event_of(body_of(failed(self.call.error)))
                return
            chunks = self._chunks(streams)
            if chunks and first:
                chunks[0] |= self.wire.top(self.frame, self.call.outputs) | await self._metadata()
                first = False
            elif chunks and (fresh := await self._fresh_digests()):
                chunks[0] |= {"metadata": {"weight_digests": fresh}}
            if chunks:
                yield b"".join(event_of(orjson.dumps(chunk)) for chunk in chunks)
        yield self._usage() + DONE

    def _chunks(self, streams: list[_ChoiceStream]) -> list[Json]:
        top = self.frame.top(self.wire.chunk_kind)
        chunks = []
        for index, stream in enumerate(streams):
            news = stream.news()
            if news is None:
                continue
            if news.finish:
                self.finished(index, stream.output)
            for choice in self.wire.chunks(self.frame, index, stream.output, news):
                chunks.append({**top, "choices": [choice]})
        return chunks

    def _usage(self) -> bytes:
        if not self.frame.ask.include_usage:
            return b""
        top = self.frame.top(self.wire.chunk_kind)
        return event_of(orjson.dumps({**top, "choices": [], "usage": self.frame.usage(self.call)}))

    async def _metadata(self) -> Json:
        if not self.frame.ask.return_ids:
            return {}
        starts = [output.start for output in self.call.outputs if output.start]
        metadata = self.frame.metadata(starts[0] if starts else None, await self._fresh_digests())
        return {"metadata": metadata}

    async def _fresh_digests(self) -> dict[str, str]:
        """Of versions that were not told yet."""
        if not self.frame.ask.return_ids:
            return {}
        outputs = self.call.outputs
        digests = {output.start.version: output.start.digest for output in outputs if output.start}
        seen = {version for output in outputs for version in output.versions} | digests.keys()
        fresh = seen - self._told
        self._told |= fresh
        if not fresh <= digests.keys():
            digests |= await self.digests()
        return {version: digests[version] for version in sorted(fresh) if version in digests}


class _ChoiceStream:
    """How much of a choice was told."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.ended = False
        self._begun = False
        self._tokens, self._pieces = output.primed

    def news(self) -> News | None:
        """What was added since the last time."""
        output, finish = self.output, self.output.finish
        if self.ended or not (output.start or finish):
            return None
        # Read after `finish`, so that it is all there is if that is there.
        tokens, pieces = output.told
        at, after = self._tokens, self._pieces
        self._tokens, self._pieces = tokens, pieces
        begins, self._begun = not self._begun, True
        self.ended = finish is not None
        return News(
            begins=begins,
            at=at,
            tokens=output.tokens[at:tokens],
            offsets=output.offsets[at:tokens],
            pieces=output.pieces[after:pieces],
            finish=finish,
        )


def failed(error: str) -> RequestError:
    return RequestError(f"the engine failed to go on: {error}", 500, "engine_error")
