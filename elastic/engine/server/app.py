"""ENTRY of the engine's server: an ASGI application around the engine's thread, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gyre.elastic.endpoint import Engine, require_loopback
from gyre.elastic.engine.compute.forward import probe_shape, step_tokens
from gyre.elastic.engine.compute.kv import GRAIN, whole_grains
from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.server import errors
from gyre.elastic.engine.server.control import ControlRoutes
from gyre.elastic.engine.server.generation import Script
from gyre.elastic.engine.server.info import InfoRoutes
from gyre.elastic.engine.server.key import keyed
from gyre.elastic.engine.server.kv import KVRoutes
from gyre.elastic.engine.server.local import local_only
from gyre.elastic.engine.server.running import listen, running, url_of
from gyre.elastic.engine.server.service import Service
from gyre.elastic.engine.server.stopping import OpenRequests
from gyre.elastic.engine.server.tokens import TokenRoutes
from gyre.elastic.engine.settings import EngineSettings
from gyre.elastic.engine.thread import EngineThread
from gyre.elastic.engine.weights.staged import digest_of
from gyre.proxy.errors import EngineError, RequestError


class EngineApp(Starlette):
    """All routes of one engine."""

    def __init__(self, service: Service, key: str | None = None) -> None:
        self._service = service
        self._requests = OpenRequests(local_only(keyed(super().__call__, key)))
        super().__init__(
            routes=[
                *service.routes,
                *TokenRoutes(service).routes,
                *InfoRoutes(service).routes,
                *ControlRoutes(service.engine, service.model).routes,
                *KVRoutes(service.engine).routes,
            ],
            exception_handlers={
                RequestError: self._refused,
                HTTPException: errors.no_route,
                ClientDisconnect: _left,
                Exception: errors.fault,
            },
        )
        self.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._requests(scope, receive, send)

    def cut(self) -> None:
        """Let no request come to its end any more; on the event loop."""
        self._requests.stop()

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        self._service.traffic.refusals[error.status] += 1
        return await errors.refused(request, error)


async def _left(_: Request, __: Exception) -> Response:
    """The client did not even send its whole request: nobody reads this."""
    return Response(status_code=400)


def create_app(
    engine: EngineThread, model: LoadedModel, settings: EngineSettings, *, script: Script | None = None
) -> EngineApp:
    """The engine as ASGI. Sets the engine's `after_step`; one application per engine.

    `script` is for tests: see `generation.Script`.
    """
    service = Service(engine, model, context=engine.limits.ctx, splice=settings.splice, script=script)
    engine.after_step = service.calls.after_step
    return EngineApp(service, settings.key)


@contextmanager
def serve(
    settings: EngineSettings,
    *,
    script: Script | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Engine]:
    """Run an engine until the block is left; it answers when the block is entered.

    At the end open answers break off, as if the process had died: whoever can continue them does.

    Raises:
        EngineError: the address cannot be used, or the model cannot be served.
    """
    require_loopback(settings.host)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)  # of the process: torch has no narrower setting
    with listen(settings.host, settings.port) as listener:
        model = load_model(
            settings.model,
            device=settings.device,
            dtype=settings.dtype,
            chat_template=settings.chat_template,
            seed=settings.seed,
            ctx=settings.ctx,
            progress=progress,
        )
        if settings.name is not None:
            model = replace(model, name=settings.name)
        engine = EngineThread(Core(model, _limits(settings, model, progress), digest=digest_of(model.model)))
        app = create_app(engine, model, settings, script=script)
        engine.start()
        try:
            with running(app, listener, app.cut):
                yield Engine(url=url_of(listener), model=model.name)
        finally:
            engine.close()


def _limits(settings: EngineSettings, model: LoadedModel, progress: Callable[[str], None]) -> EngineLimits:
    """With a context that the memory for keys and values can hold."""
    tokens = whole_grains(settings.kv_bytes // probe_shape(model.model).token_bytes)
    ctx = min(settings.ctx or model.max_positions, model.max_positions)
    if tokens < (settings.ctx or GRAIN):
        wanted = settings.ctx or GRAIN
        raise EngineError(
            f"`--kv-memory` holds {tokens} tokens, not {wanted}", "give it more, or `--ctx` less"
        )
    if tokens < ctx:
        progress(f"the context is {tokens} tokens, which is what --kv-memory holds")
    return EngineLimits(
        ctx=min(ctx, tokens),
        slots=settings.slots,
        queue=settings.queue,
        kv_bytes=settings.kv_bytes,
        step_tokens=step_tokens(model.model),
    )
