"""What a client is told when its request is refused, in OpenAI's form."""

from __future__ import annotations

import logging

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gyre.proxy.errors import RequestError

log = logging.getLogger(__name__)

OVERFLOW = "context_length_exceeded"
OVERLOADED = "overloaded"
_PARAMS = {OVERFLOW: "messages", "model_not_found": "model"}
_KINDS = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


class FieldError(RequestError):
    """A field of the body that cannot be served; `param` of the answer names it."""

    def __init__(self, field: str, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(f"`{field}`: {message}", status, code)
        self.field = field


def too_long(context: int, asked: int, what: str = "") -> RequestError:
    """The context overflow by which agents know that they must compact."""
    message = f"This model's maximum context length is {context} tokens, but {asked} were asked for{what}."
    return RequestError(message, 400, OVERFLOW)


def unknown_model(name: str, served: str) -> RequestError:
    return RequestError(f"the model `{name}` is not served here; `{served}` is", 404, "model_not_found")


def body_of(error: RequestError) -> bytes:
    """`{"error": {message, type, param, code}}`."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = error.field if isinstance(error, FieldError) else _PARAMS.get(error.code)
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": error.code}})


def answer_of(error: RequestError) -> Response:
    headers = {"retry-after": "1"} if error.status == 503 else {}
    if error.status == 413:
        headers["connection"] = "close"  # what is left of the body is never read
    return Response(body_of(error), error.status, headers, "application/json")


async def refused(_: Request, error: Exception) -> Response:
    """For Starlette: an error that was raised on purpose."""
    assert isinstance(error, RequestError)
    return answer_of(error)


async def no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    answer = answer_of(RequestError(message, error.status_code, code))
    answer.headers.update(error.headers or {})
    return answer


async def fault(request: Request, error: Exception) -> Response:
    """A bug of ours; Starlette raises it again, so that it is seen."""
    log.error("%s %s failed: %r", request.method, request.url.path, error)
    return answer_of(RequestError("a fault of the engine's server; its log says more", 500, "internal_error"))
