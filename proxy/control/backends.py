"""Routes for engines that come, go, drain and change their policy version while calls run."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Response

from gyre.proxy.commands import AddBackend, DrainBackend, RemoveBackend, SetVersion
from gyre.proxy.control.bodies import (
    BackendBody,
    BackendChange,
    BackendsView,
    ErrorView,
    VersionBody,
    VersionView,
)
from gyre.proxy.control.plane import ControlPlane
from gyre.proxy.errors import ConfigError, RequestError
from gyre.proxy.settings import Backend, checked_backend
from gyre.proxy.status import BackendStatus

Name = Annotated[str, Path(description="Name of a backend")]
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": ErrorView}}
_CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorView}}


class BackendRoutes:
    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._turn = asyncio.Lock()
        """Look and change are one step."""
        self.router = APIRouter(tags=["backends"])
        add = self.router.add_api_route
        add("/backends", self.list_all, response_model=BackendsView)
        add(
            "/backends",
            self.add,
            methods=["POST"],
            status_code=201,
            response_model=BackendStatus,
            responses=_CONFLICT,
        )
        one = "/backends/{name:path}"
        add(one, self.change, methods=["PATCH"], response_model=BackendStatus, responses=_MISSING)
        add(one, self.remove, methods=["DELETE"], status_code=204, responses=_MISSING)
        add("/version", self.set_version, methods=["PUT"], response_model=VersionView)

    async def list_all(self) -> BackendsView:
        """Every backend with its state, its open calls and the version it serves."""
        return BackendsView(backends=list((await self._plane.status()).backends.values()))

    async def add(self, body: BackendBody) -> BackendStatus:
        """Add an engine. It is asked who it is before it takes calls; the same again does no harm."""
        backend = _checked(body)
        async with self._turn:
            known = (await self._plane.status()).backends.get(backend.name)
            if known and known.url != backend.url:
                raise RequestError(
                    f"backend `{backend.name}` is there already, at {known.url}",
                    status=409,
                    code="backend_exists",
                    hint="choose another `name`, or DELETE it first",
                )
            await self._plane.submit(AddBackend(backend))
        return await self._named(backend.name)

    async def change(self, name: Name, body: BackendChange) -> BackendStatus:
        """Drain it (open calls finish, no new ones come), take it back, or set its version."""
        async with self._turn:
            await self._named(name)
            if body.version is not None:
                await self._plane.submit(SetVersion(name, body.version))
            if body.draining is not None:
                await self._plane.submit(DrainBackend(name, body.draining))
            return await self._named(name)

    async def remove(self, name: Name) -> Response:
        """Forget it; calls that are open on it go on to their end."""
        async with self._turn:
            await self._named(name)
            await self._plane.submit(RemoveBackend(name))
        return Response(status_code=204)

    async def set_version(self, body: VersionBody) -> VersionView:
        """All backends serve this policy version from now on."""
        await self._plane.submit(SetVersion(None, body.version))
        return VersionView(version=body.version, backends=list((await self._plane.status()).backends))

    async def _named(self, name: str) -> BackendStatus:
        backends = (await self._plane.status()).backends
        if name not in backends:
            hint = f"known backends: {', '.join(backends)}" if backends else "there are no backends"
            raise RequestError(f"no backend is named `{name}`", status=404, code="unknown_backend", hint=hint)
        return backends[name]


def _checked(body: BackendBody) -> Backend:
    try:
        return checked_backend(msgspec.convert(body.model_dump(), Backend))
    except ConfigError as error:
        raise RequestError(error.message, status=422, code="invalid_backend", hint=error.hint) from error
