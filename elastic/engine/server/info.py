"""What the engine says about itself: models, health, load, metrics, version."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gyre.elastic.engine.server import traffic
from gyre.elastic.engine.server.errors import unknown_model
from gyre.elastic.engine.server.service import Service
from gyre.proxy.errors import RequestError

OWNER = "gyre"
"""By which the proxy knows what to ask for."""


class InfoRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(time.time())

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/load", self.load),
            Route("/metrics", self.metrics),
            Route("/version", self.version),
        ]

    async def models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._service.model.name:
            raise unknown_model(name, self._service.model.name)
        return _json(self._model())

    async def health(self, _: Request) -> Response:
        """503 when no request can be served any more."""
        if not self._service.engine.alive:
            raise RequestError("the engine is stopping", 503, "stopping")
        return _json({"status": "ok"})

    async def load(self, _: Request) -> Response:
        """`server_load` is vLLM's: generations that are open."""
        stats = asdict(self._service.engine.stats)
        return _json({"server_load": stats["running"] + stats["waiting"], **stats})

    async def metrics(self, _: Request) -> Response:
        page = traffic.page(self._service.traffic, self._service.engine.stats)
        return Response(page, media_type=traffic.CONTENT_TYPE)

    async def version(self, _: Request) -> Response:
        return _json({"version": version("gyre-rl")})

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._service.model.name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "max_model_len": self._service.context,
        }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
