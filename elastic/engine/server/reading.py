"""Request bodies off the socket, within a limit."""

from __future__ import annotations

from starlette.requests import Request

from gyre.proxy.errors import RequestError

MOST_BYTES = 64 << 20
"""A prompt of a million ids takes 7 MB."""


async def read_body(request: Request, limit: int = MOST_BYTES) -> bytes:
    """Raises:
    RequestError: 413, before the rest is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is larger than {limit >> 20} MiB", 413, "request_too_large")
