"""What becomes of open requests when the server stops."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gyre.elastic.engine.server.errors import answer_of
from gyre.proxy.errors import RequestError


class OpenRequests:
    """Around an application: once it stops, a request whose answer has not begun is refused, at once.

    An answer that has begun gets no end: it stays open until the server closes its connection, so that
    nobody takes it for a whole one. Of the event loop alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def stop(self) -> None:
        """Also refuses whatever comes from now on."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stopping:
            return await _refuse(scope, receive, send)
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if await self._ended(scope, receive, noted):
            return
        if begun:
            await _until_closed(receive)
        else:
            await _refuse(scope, receive, send)

    async def _ended(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Whether the application was done with the request before the stop."""
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            task.uncancel()
            return False
        finally:
            self._tasks.discard(task)
        return True


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    answer = answer_of(RequestError("the engine is stopping", 503, "stopping"))
    await answer(scope, receive, send)


async def _until_closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
