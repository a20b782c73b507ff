"""Nobody but programs of this machine: a web page in its browser is none.

Its address keeps other machines out, and its key, where it has one, other programs. Without one a page from
elsewhere could still have the browser send requests to it, under the page's origin or under a name that was
made to lead here.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gyre.elastic.engine.server.errors import answer_of
from gyre.proxy.errors import RequestError


def local_only(app: ASGIApp) -> ASGIApp:
    """`app` for requests that name a loopback host, and come from no page or from one of such a host."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := _foreign(Headers(scope=scope))):
            await answer_of(RequestError(problem, 403, "not_local"))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded


def _foreign(headers: Headers) -> str | None:
    """What shows that a request is not of this machine."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _loopback(f"//{host}"):
        return f"the host `{host}` is no loopback address"
    if origin is not None and not _loopback(origin):
        return f"requests from pages of `{origin}` are not served"
    return None


def _loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
