"""Who knows the key may ask for anything, others for the engine's health alone."""

from __future__ import annotations

from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gyre.elastic.engine.server.errors import answer_of
from gyre.elastic.engine.settings import KEY_ENV
from gyre.proxy.errors import RequestError

_OPEN = "/health"
_BEARER = "bearer "


def keyed(app: ASGIApp, key: str | None) -> ASGIApp:
    """`app` for requests with `authorization: Bearer KEY`, or `x-api-key` as Anthropic's clients send it.

    Without a key for everybody.
    """
    if not key:
        return app

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != _OPEN and not _knows(Headers(scope=scope), key):
            problem = RequestError("the engine asks for its key", 401, "invalid_api_key", f"see {KEY_ENV}")
            await answer_of(problem)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded


def _knows(headers: Headers, key: str) -> bool:
    said = headers.get("authorization", "")
    bearer = said[len(_BEARER) :].strip() if said[: len(_BEARER)].lower() == _BEARER else ""
    return any(compare_digest(one.encode(), key.encode()) for one in (bearer, headers.get("x-api-key", "")))
