"""Control of a running engine: pause, versions of the weights, abort. vLLM's names where it has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import orjson
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.server.bodies import Name, decode
from gyre.elastic.engine.server.errors import FieldError
from gyre.elastic.engine.server.reading import read_body
from gyre.elastic.engine.thread import EngineThread
from gyre.elastic.engine.weights.staged import StagedWeights, stage
from gyre.proxy.errors import RequestError

T = TypeVar("T")
Version = Name | Annotated[int, Meta(ge=0)]
PAUSE_MODES = ("abort", "wait", "keep")
POLL_S = 0.02
"""How often a pause with `wait` looks whether the last request has ended."""


class UpdateInfo(msgspec.Struct, kw_only=True):
    path: str
    """Folder of safetensors, absolute: the engine's working directory is not the client's."""
    weight_version: Version


class UpdateBody(msgspec.Struct, kw_only=True):
    update_info: UpdateInfo
    in_flight: Literal["keep", "recompute", "abort"] = "keep"


class VersionBody(msgspec.Struct, kw_only=True):
    new_version: Version


class AbortBody(msgspec.Struct, kw_only=True):
    request_ids: list[str] | None = None


class ControlRoutes:
    """Of the event loop alone."""

    def __init__(self, engine: EngineThread, model: LoadedModel) -> None:
        self._engine = engine
        self._model = model
        self._staging: str | None = None
        """Version that is being read and checked."""

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/pause", self.pause, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/is_paused", self.is_paused),
            Route("/weight_info", self.weight_info),
            Route("/update_weight_version", self.update_weight_version, methods=["POST"]),
            Route("/update_weights", self.update_weights, methods=["POST"]),
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            Route("/abort_requests", self.abort_requests, methods=["POST"]),
        ]

    async def pause(self, request: Request) -> Response:
        """`abort` (the default, as in vLLM) ends all requests, `keep` freezes them, `wait` lets them end.

        What arrives meanwhile waits in the queue. Kept prefixes stay: they are of known weights.
        """
        mode = request.query_params.get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise FieldError("mode", f"`{mode}` is none of {', '.join(PAUSE_MODES)}")
        await in_engine(self._engine, lambda core: core.pause(mode))
        while not await in_engine(self._engine, _still):
            await asyncio.sleep(POLL_S)
        return _json({"status": "paused"})

    async def resume(self, _: Request) -> Response:
        await in_engine(self._engine, lambda core: core.resume())
        return _json({"status": "resumed"})

    async def is_paused(self, _: Request) -> Response:
        """True from the call of `pause` on, also while `wait` waits."""
        return _json({"is_paused": await in_engine(self._engine, lambda core: not core.admits)})

    async def weight_info(self, _: Request) -> Response:
        version, digest = await in_engine(self._engine, lambda core: (core.version, core.digest))
        return _json({"weight_version": version, "weight_digest": digest})

    async def update_weight_version(self, request: Request) -> Response:
        """Another name for the weights as they are."""
        version = str(decode(await read_body(request), VersionBody).new_version)
        await in_engine(self._engine, lambda core: _rename(core, version))
        return _json({"success": True, "new_version": version})

    async def update_weights(self, request: Request) -> Response:
        """A folder as a new version; requests go on while it is read and checked.

        Answers when the next token will be of the new weights. To publish a version again that is in
        use, with the same weights, changes nothing: a client that lost the answer may ask again.
        """
        body = decode(await read_body(request), UpdateBody)
        folder, version = Path(body.update_info.path), str(body.update_info.weight_version)
        if not folder.is_absolute():
            raise FieldError("update_info.path", f"{folder} is not absolute")
        staged = await self._stage(folder, version)
        await in_engine(self._engine, lambda core: _publish(core, staged, version, body.in_flight))
        told = {"message": "Weights updated", "weight_version": version, "weight_digest": staged.digest}
        return _json(told)

    async def reset_prefix_cache(self, _: Request) -> Response:
        """Kept prefixes are dropped; running requests and imported KV stay."""
        await in_engine(self._engine, lambda core: core.memory.store.clear())
        return _json({"success": True})

    async def abort_requests(self, request: Request) -> Response:
        """Those named, or all if none is; their answers end with `abort`."""
        named = decode(await read_body(request) or b"{}", AbortBody).request_ids
        count = await in_engine(self._engine, lambda core: _abort(core, named or []))
        return _json({"status": "aborted", "aborted": count})

    async def _stage(self, folder: Path, version: str) -> StagedWeights:
        if self._staging is not None:
            raise RequestError(f"version {self._staging} is being read; one at a time", 409, "update_running")
        self._staging = version
        try:
            return await asyncio.to_thread(stage, folder, self._model)
        finally:
            self._staging = None


async def in_engine(engine: EngineThread, work: Callable[[Core], T]) -> T:
    """Run `work` between two steps of the engine."""
    return await asyncio.wrap_future(engine.call(work))


def _still(core: Core) -> bool:
    """Whether the pause is complete."""
    if core.admits:
        raise RequestError("the engine was resumed before all requests had ended", 409, "resumed")
    return core.still


def _rename(core: Core, version: str) -> None:
    if version != core.version:
        core.rename(version)


def _publish(core: Core, staged: StagedWeights, version: str, in_flight: str) -> None:
    if (version, staged.digest) != (core.version, core.digest):
        core.publish(staged, version=version, in_flight=in_flight)


def _abort(core: Core, named: list[str]) -> int:
    """How many were ended. A call of several choices goes by its own name, they by theirs."""
    held = [sequence.request for sequence in core.roster]
    wanted = set(named)
    found = [one.request_id for one in held if not wanted or wanted & {one.request_id, one.call_id}]
    core.abort(found)
    return len(found)


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
