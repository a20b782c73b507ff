"""Routes without FastAPI's own way to an endpoint, which takes longer than most endpoints do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ShortRoute(APIRoute):
    """Its endpoint takes the values of the path, and `body` where it has one, and answers with a model.

    A run asks such routes several times for each execution. FastAPI describes them as it does others.
    """

    def get_route_handler(self) -> Handler:
        endpoint: Callable[..., Awaitable[BaseModel]] = self.endpoint
        body: type[BaseModel] | None = get_type_hints(endpoint).get("body")

        async def handle(request: Request) -> Response:
            said = {"body": _read(body, await _sent(request))} if body else {}
            answer = await endpoint(**request.path_params, **said)
            return Response(answer.model_dump_json(), media_type="application/json")

        return handle


async def _sent(request: Request) -> bytes:
    """Only what says that it is JSON: a page in somebody's browser cannot say so unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RequestValidationError(
            [{"loc": ("body",), "msg": "send it as `content-type: application/json`"}]
        )
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the body ended before its end") from None


def _read(model: type[BaseModel], data: bytes) -> BaseModel:
    """As FastAPI reads it: what is wrong with a field is said with its name, also where it is no text."""
    try:
        return model.model_validate(json.loads(data))
    except ValidationError as problem:
        wrong = [{**error, "loc": ("body", *error["loc"])} for error in problem.errors(include_context=False)]
    except (ValueError, RecursionError) as problem:
        wrong = [{"loc": ("body",), "msg": f"no JSON: {problem}"}]
    raise RequestValidationError(wrong)
