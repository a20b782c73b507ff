"""Open calls between the engine's thread and the event loop: one wake-up a step, whatever the streams."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import Receive

from gyre.elastic.engine.request import FinishReason, GenerationRequest
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.thread import EngineThread
from gyre.proxy.errors import RequestError


@dataclass(frozen=True, slots=True)
class Choice:
    output: Output
    request: GenerationRequest | None
    """None: it was complete before it began; see `Output.prime`."""


@dataclass(eq=False, slots=True)
class Call:
    """One HTTP request: the choices of one prompt, or of several."""

    groups: list[list[Choice]]
    """The choices of each prompt."""
    stream: bool
    """Whether to hear of each step, not of the end alone."""
    submitted: list[tuple[GenerationRequest, Output]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    """The client left."""
    told: bool = False
    """Whether `news` is to be set by the wake-up that is under way; of the engine's thread."""

    @property
    def outputs(self) -> list[Output]:
        return [choice.output for group in self.groups for choice in group]

    @property
    def finished(self) -> bool:
        return all(output.finish for output in self.outputs)

    @property
    def settled(self) -> bool:
        """All is there that there will be: one choice that fails is the end of all."""
        return self.finished or self.error is not None

    @property
    def error(self) -> str | None:
        ends = [output.finish for output in self.outputs if output.finish]
        errors = [end.error or "it failed" for end in ends if end.reason == FinishReason.ERROR]
        return errors[0] if errors else None

    async def watch(self, receive: Receive) -> None:
        """Until the client leaves; the request's body must have been read."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.news.set()


class Calls:
    """All open calls. `after_step` is for the engine's thread, the rest for the event loop."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._told: deque[Call] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def begin(self, call: Call) -> None:
        """Hand the call's choices to the engine; they are in its queue when this returns.

        Raises:
            RequestError: the engine refuses one of them; then none is left there.
        """
        self._loop = asyncio.get_running_loop()
        for output in call.outputs:
            output.on_finish = lambda: self._tell(call)
            if call.stream:
                output.on_news = output.on_finish
        try:
            for group in call.groups:
                choices = [(choice.request, choice.output) for choice in group if choice.request]
                if choices:
                    await asyncio.wrap_future(self._engine.submit(choices))
                    call.submitted += choices
        except (RequestError, asyncio.CancelledError):
            self.leave(call)
            raise

    def leave(self, call: Call) -> None:
        """The call is answered, or nobody waits for it: what is still sampled for it is aborted."""
        running = [request.request_id for request, output in call.submitted if output.finish is None]
        if running:
            with suppress(RequestError):  # it is stopping, and ends them itself
                self._engine.abort(running)

    def after_step(self) -> None:
        if self._told and self._loop:
            with suppress(RuntimeError):  # the loop has ended, and all calls with it
                self._loop.call_soon_threadsafe(self._wake)

    def _tell(self, call: Call) -> None:
        if not call.told:
            call.told = True
            self._told.append(call)

    def _wake(self) -> None:
        while self._told:
            call = self._told.popleft()
            call.told = False
            call.news.set()
