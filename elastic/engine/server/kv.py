"""Conversations' KV over HTTP, out of one engine and into another: safetensors, see `moving.conversation`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import orjson
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.moving.carry import export_ids, export_request, import_conversation
from gyre.elastic.engine.moving.conversation import ConversationKV, pieces, too_large
from gyre.elastic.engine.moving.conversation import decode as decode_kv
from gyre.elastic.engine.server.bodies import Id, Name, decode
from gyre.elastic.engine.server.control import in_engine
from gyre.elastic.engine.server.errors import FieldError
from gyre.elastic.engine.server.reading import read_body
from gyre.elastic.engine.thread import EngineThread

PART = 1 << 20
"""Bytes that are handed to the socket at a time."""
DESCRIPTION = 16 << 20
"""Room for what goes along with the keys and values."""


class ExportBody(msgspec.Struct, kw_only=True):
    """One of the two."""

    request_id: Name | None = None
    token_ids: Annotated[list[Id], Meta(min_length=1)] | None = None


class KVRoutes:
    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._importing = asyncio.Lock()
        """A blob may be as large as all keys and values: one at a time is held beside them."""

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/kv/export", self.export, methods=["POST"]),
            Route("/kv/import", self.import_, methods=["POST"]),
        ]

    async def export(self, request: Request) -> Response:
        """`request_id`: that request ends with `moved`. `token_ids`: a copy of what is kept of them."""
        body = decode(await read_body(request), ExportBody)
        if (body.request_id is None) == (body.token_ids is None):
            raise FieldError("request_id", "give either `request_id` or `token_ids`")
        conversation = await in_engine(self._engine, lambda core: _export(core, body))
        parts = await asyncio.to_thread(pieces, conversation)
        size = sum(map(len, parts))
        headers = {"content-length": str(size), "x-gyre-kv-tokens": str(conversation.n_tokens)}
        return StreamingResponse(_sliced(parts), 200, headers, "application/octet-stream")

    async def import_(self, request: Request) -> Response:
        """What `/kv/export` of another engine gave; a request may then name it as `kv_id`."""
        limit = self._engine.stats.kv_limit_bytes + DESCRIPTION
        async with self._importing:
            data = await _read_blob(request, limit)
            conversation = await asyncio.to_thread(decode_kv, data, limit)
            kv_id = await in_engine(self._engine, lambda core: import_conversation(core, conversation))
        return Response(
            orjson.dumps({"kv_id": kv_id, "tokens": conversation.n_tokens}), media_type="application/json"
        )


def _export(core: Core, body: ExportBody) -> ConversationKV:
    if body.request_id is not None:
        return export_request(core, body.request_id)
    return export_ids(core, body.token_ids or [])


async def _sliced(parts: tuple[bytes | memoryview, ...]) -> AsyncIterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PART):
            yield view[start : start + PART]


async def _read_blob(request: Request, limit: int) -> bytearray:
    """The body in one piece of memory, to be viewed as tensors.

    Raises:
        RequestError: 413, before the rest is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(int(declared), limit)
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise too_large(len(data), limit)
    return data
