"""What all routes share, and the two that generate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.routing import Route

from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.server.answers import Answer
from gyre.elastic.engine.server.calls import Call, Calls
from gyre.elastic.engine.server.chat import ChatWire
from gyre.elastic.engine.server.completions import CompletionWire
from gyre.elastic.engine.server.frame import Frame
from gyre.elastic.engine.server.generation import Generations, Script
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.server.prompts import Prompts
from gyre.elastic.engine.server.reading import read_body
from gyre.elastic.engine.server.traffic import Traffic
from gyre.elastic.engine.server.wire import Wire
from gyre.elastic.engine.thread import EngineThread
from gyre.proxy.errors import RequestError

_LARGE = 1 << 15
Read = Callable[[bytes], tuple[Call, Frame]]
T = TypeVar("T")


async def in_thread_if_large(read: Callable[[bytes], T], raw: bytes) -> T:
    """Rendering and encoding a long prompt here would hold up all streams."""
    return await asyncio.to_thread(read, raw) if len(raw) > _LARGE else read(raw)


class Service:
    """One engine and its model as HTTP sees them. Of the event loop alone."""

    def __init__(
        self,
        engine: EngineThread,
        model: LoadedModel,
        *,
        context: int,
        splice: bool,
        script: Script | None = None,
    ) -> None:
        self.engine = engine
        self.model = model
        self.context = context
        self.prompts = Prompts(model, context, splice=splice)
        self.calls = Calls(engine)
        self.traffic = Traffic()
        self._generations = Generations(model, self.prompts, script)

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Answer:
        return await self._begin(request, ChatWire(), self._generations.chat)

    async def completion(self, request: Request) -> Answer:
        return await self._begin(request, CompletionWire(), self._generations.completion)

    async def digests(self) -> dict[str, str]:
        """Digest of the weights of every version that was served here."""
        try:
            return await asyncio.wrap_future(self.engine.call(lambda core: dict(core.digests)))
        except RequestError:  # it is stopping
            return {}

    async def _begin(self, request: Request, wire: Wire, read: Read) -> Answer:
        arrived = time.perf_counter()
        raw = await read_body(request)
        call, frame = await in_thread_if_large(read, raw)
        await self.calls.begin(call)
        self.traffic.spliced += sum(prompt.spliced_tokens for prompt in frame.prompts)

        def finished(index: int, output: Output) -> None:
            self._finished(wire, frame, index, output, arrived)

        return Answer(
            call=call, frame=frame, wire=wire, digests=self.digests, leave=self._leave, finished=finished
        )

    def _finished(self, wire: Wire, frame: Frame, index: int, output: Output, arrived: float) -> None:
        assert output.finish
        self.traffic.answered(wire.name, output.finish.reason, arrived, output.begun_at)
        if frame.is_verbatim(output, output.finish):
            ids = [token.id for token in output.tokens]
            self.prompts.remember(frame.prompt_of(index), ids, output.reply.message())

    def _leave(self, call: Call) -> None:
        self.traffic.left += call.gone and not call.finished
        self.calls.leave(call)
