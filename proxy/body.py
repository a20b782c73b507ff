"""Request bodies: read within limits, content-encoding taken off."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import zstandard

from gyre.proxy.clock import Receive
from gyre.proxy.errors import RequestError

_PIECE = 1024


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


async def read_body(receive: Receive, limit: int, charge: Callable[[int], None]) -> bytes:
    """The raw body. `charge` is told of bytes as they come, so that memory is accounted for.

    Raises:
        RequestError: status 413 beyond `limit`.
        ClientLeft: the connection closed first.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        charge(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def too_large(limit: int) -> RequestError:
    return RequestError(
        f"request body is larger than {limit} bytes",
        status=413,
        code="request_too_large",
        hint="raise `limits.body` in the proxy's configuration",
    )


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """Take off a Content-Encoding of gzip, deflate or zstd, never inflating beyond `limit`.

    Raises:
        RequestError: 413 for a body that inflates too far, 400 for garbage, 415 for other encodings.
    """
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        try:
            body = _inflate(name, body, limit)
        except (zlib.error, zstandard.ZstdError) as error:
            message = f"request body is not valid {name}: {error}"
            raise RequestError(message, code="invalid_content_encoding") from error
    return body


def _inflate(name: str, body: bytes, limit: int) -> bytes:
    """All members or frames of `body`, in pieces so small that none inflates beyond some megabytes."""
    parts, size = [], 0
    inflater = _inflater(name)
    for at in range(0, len(body), _PIECE):
        piece = body[at : at + _PIECE]
        while piece:
            if inflater.eof:
                inflater = _inflater(name)
            parts.append(inflater.decompress(piece))
            size += len(parts[-1])
            if size > limit:
                raise too_large(limit)
            piece = inflater.unused_data
    if not inflater.eof:
        raise zlib.error("it ends too early")
    return b"".join(parts)


def _inflater(name: str) -> zlib._Decompress | zstandard.ZstdDecompressionObj:
    if name == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    if name in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(zlib.MAX_WBITS | 32)
    raise RequestError(
        f"content-encoding `{name}` is not supported", status=415, code="unsupported_content_encoding"
    )


def inflater_of(encoding: str | None) -> zlib._Decompress | None:
    """Takes an engine's Content-Encoding off as the bytes come; None where there is none we know."""
    known = (encoding or "").lower() in ("gzip", "x-gzip", "deflate")
    return zlib.decompressobj(zlib.MAX_WBITS | 32) if known else None


def inflated(inflater: zlib._Decompress, body: bytes) -> tuple[bytes, bool]:
    """A compressed answer as far as it goes, and whether it was whole."""
    try:
        data = inflater.decompress(body)
    except zlib.error:
        return b"", False
    return data, inflater.eof
