"""The relay: a bare ASGI application in front of the control API.

FastAPI costs more than a whole relayed call, so only control paths reach it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from gyre.proxy.budget import Budget, tune_allocator
from gyre.proxy.capture.prompts import PromptTexts
from gyre.proxy.clock import Limits
from gyre.proxy.exchange import Exchange
from gyre.proxy.replay import Replays
from gyre.proxy.restore import Sampled
from gyre.proxy.upstream import Prober, Upstream
from gyre.proxy.worker import Worker

log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
_BUSY = 64 << 20
"""Bytes of open calls beside which sealing can wait."""
_HELLO = "/api/hello"
"""Claude Code asks whether its server is there, under whatever base URL it was given."""
_CONTROL = ("/gyre/", "/healthz", "/metrics")


class Relay:
    """One worker's application. `start` before the first request, `stop` after the last."""

    def __init__(self, worker: Worker, control_app: ASGIApp) -> None:
        self.worker = worker
        self.token = os.environ.get(worker.settings.token_env)
        self.budget = Budget(worker.settings.limits.memory)
        self.upstream = Upstream(worker.settings.timeouts, self.token)
        self.prober = Prober(worker, self.upstream)
        self.prompts = PromptTexts()
        self.sampled = Sampled(Path(worker.settings.logs))
        self.clock_limits = Limits.of(worker.settings.timeouts)
        worker.recorder.busy = lambda: self.budget.recent() > _BUSY
        self.replays = Replays() if worker.settings.replay_retries else None
        self._control = control_app
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith(_CONTROL):
            await self._control(scope, receive, send)
            return
        if scope["method"] == "HEAD" and scope["path"].endswith(_HELLO):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        self._open += 1
        self._idle.clear()
        try:
            await Exchange(self, scope, receive, send).run()
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def start(self) -> None:
        """Open the journal and begin to look for the backends.

        Raises:
            OSError: the log folder cannot be written.
        """
        tune_allocator()
        self.worker.recorder.start()
        self.upstream.start()
        self.worker.on_backend = self.prober.watch
        for backend in self.worker.router.backends.values():
            self.prober.watch(backend)

    async def stop(self, *, seal: bool = True) -> None:
        """Let open calls finish, as long as the settings allow, then close the journal and seal it."""
        self.worker.stopping = True
        try:
            await asyncio.wait_for(self._idle.wait(), self.worker.settings.shutdown_s)
        except TimeoutError:
            log.warning("%d calls were still open at the end of the shutdown limit", self._open)
        self.prober.stop()
        await self.upstream.stop()
        await self.worker.recorder.close(seal=seal)
