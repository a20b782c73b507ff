"""The control API: health, metrics and `/gyre/v1/...`, the same from every worker.

Not on the path of calls: the relay passes on only what begins with these paths. docs/control-api.md
describes the routes and is tested against this.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match

from gyre.proxy.commands import ForgetLog
from gyre.proxy.control import prometheus
from gyre.proxy.control.backends import BackendRoutes
from gyre.proxy.control.bodies import ErrorDetail, ErrorView, ForgetView, HealthView, SealView, StatusView
from gyre.proxy.control.executions import ExecutionRoutes
from gyre.proxy.control.plane import ControlPlane
from gyre.proxy.errors import RequestError
from gyre.proxy.identity import api_key
from gyre.proxy.status import BackendStatus, Status
from gyre.proxy.worker import Worker

log = logging.getLogger(__name__)
BODY_LIMIT = 4 << 20
OPEN_TO_ALL = "/healthz"
"""Load balancers and supervisors have no token."""

Scope = MutableMapping[str, Any]
ASGICall = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def control_app(worker: Worker, plane: ControlPlane) -> FastAPI:
    """The control API of one worker; `plane` reaches the others."""
    app = FastAPI(
        title="gyre proxy control",
        version=version("gyre-rl"),
        openapi_url="/gyre/v1/openapi.json",
        docs_url="/gyre/v1/docs",
        redoc_url=None,
        responses={400: {"model": ErrorView}, 422: {"model": ErrorView}},
    )
    # First, for routes are tried one after the other, and these are asked for most.
    ExecutionRoutes(worker, plane).add_to(app.router, "/gyre/v1")
    routes = _Routes(worker, plane)
    app.add_api_route("/healthz", routes.health, response_model=HealthView)
    app.add_api_route("/metrics", routes.metrics, response_class=Response)
    app.add_api_route("/gyre/v1/status", routes.status, response_model=StatusView)
    app.add_api_route("/gyre/v1/log/seal", routes.seal, methods=["POST"], response_model=SealView)
    app.add_api_route("/gyre/v1/log/forget", routes.forget, methods=["POST"], response_model=ForgetView)
    app.include_router(BackendRoutes(plane).router, prefix="/gyre/v1")
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Guard, token=os.environ.get(worker.settings.token_env))
    return app


class _Routes:
    """What concerns the proxy as a whole."""

    def __init__(self, worker: Worker, plane: ControlPlane) -> None:
        self._worker = worker
        self._plane = plane

    async def health(self, response: Response) -> HealthView:
        """Whether calls can be served and recorded; 503 when they are refused."""
        health = health_of(await self._plane.status())
        response.status_code = 503 if health.status == "failing" else 200
        return health

    async def metrics(self) -> Response:
        """Prometheus' text format, summed over the workers."""
        return Response(prometheus.page(await self._plane.status()), media_type=prometheus.CONTENT_TYPE)

    async def status(self) -> StatusView:
        """The proxy at a glance."""
        status = await self._plane.status()
        return StatusView(
            gyre=version("gyre-rl"),
            logs=str(Path(self._worker.settings.logs).absolute()),
            workers=status.workers,
            stopping=status.stopping,
            in_flight=status.metrics.in_flight,
            holding=status.metrics.holding,
            memory=status.metrics.memory,
            backends=list(status.backends.values()),
            log=status.log,
        )

    async def seal(self) -> SealView:
        """Bring what is in the journal into Parquet now, in every worker."""
        reports = await self._plane.seal()
        if None in reports:
            raise RequestError("sealing failed; the proxy's own log says why", status=503, code="seal_failed")
        return SealView(reports=reports)

    async def forget(self) -> ForgetView:
        """Have no worker refer to rows or messages written before now, so that they can be pruned."""
        await self._plane.submit(ForgetLog())
        return ForgetView(forgotten=True)


def health_of(status: Status) -> HealthView:
    backends = {name: _backend_health(backend) for name, backend in status.backends.items()}
    if status.log.problems:
        return HealthView(status="failing", reason="; ".join(status.log.problems), backends=backends)
    if status.stopping:
        return HealthView(status="failing", reason="the proxy is shutting down", backends=backends)
    if not status.serves:
        return HealthView(status="degraded", reason="no backend takes calls", backends=backends)
    return HealthView(status="ok", backends=backends)


def _backend_health(backend: BackendStatus) -> str:
    if backend.draining:
        return "draining"
    return "ready" if backend.ready else backend.problem or "has not answered yet"


class Guard:
    """Middleware: the token, where one is set, and a limit for bodies."""

    def __init__(self, app: ASGICall, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._admits(scope):
            refusal = _error(401, "invalid_token", "the proxy's token is missing or wrong")
            await refusal(scope, receive, send)
            return
        await self._app(scope, _limited(receive), send)

    def _admits(self, scope: Scope) -> bool:
        if self._token is None or scope["path"] == OPEN_TO_ALL:
            return True
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        shown = headers.get("x-gyre-token") or api_key(headers) or ""
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _limited(receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    taken = 0

    async def limited() -> Any:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > BODY_LIMIT:
            raise HTTPException(413, f"the body is larger than {BODY_LIMIT} bytes")
        return message

    return limited


def _error(status: int, code: str, message: str, hint: str = "") -> JSONResponse:
    body = ErrorView(error=ErrorDetail(code=code, message=message, hint=hint))
    headers = {"retry-after": "1"} if status == 503 else None
    return JSONResponse(body.model_dump(), status, headers)


def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error(error.status, error.code, error.message, error.hint)


def _http_error(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown paths and methods, malformed bodies."""
    assert isinstance(error, StarletteHTTPException)
    named = (
        f"{error.detail}: {request.method} {request.url.path}" if error.status_code == 404 else error.detail
    )
    answer = _error(error.status_code, "http_error", named)
    if error.status_code == 405:
        answer.headers["allow"] = ", ".join(_allowed(request))
    return answer


def _allowed(request: Request) -> list[str]:
    """The framework names those of the first route of a path only."""
    return [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


def _invalid(request: Request, error: Exception) -> Response:
    """Names the field; what stood in it is not repeated."""
    assert isinstance(error, RequestValidationError)
    said = (
        f"`{'.'.join(map(str, e['loc'][1:])) or 'body'}`: {e['msg'].removeprefix('Value error, ')}"
        for e in error.errors()
    )
    return _error(422, "invalid_request", "; ".join(said))
