"""Between text and ids, without generating: `/tokenize`, `/detokenize`, `/apply-template`."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gyre.elastic.engine.server.bodies import DetokenizeBody, TokenizeBody, decode
from gyre.elastic.engine.server.errors import FieldError, unknown_model
from gyre.elastic.engine.server.reading import read_body
from gyre.elastic.engine.server.service import Service, in_thread_if_large


class TokenRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/apply-template", self.apply_template, methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """The ids that a request with this prompt would be computed from."""
        raw = await read_body(request)
        ids = await in_thread_if_large(self._tokenize, raw)
        return _json({"count": len(ids), "max_model_len": self._service.context, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        raw = await read_body(request)
        return _json({"prompt": await in_thread_if_large(self._detokenize, raw)})

    async def apply_template(self, request: Request) -> Response:
        """The prompt of a chat request as text."""
        raw = await read_body(request)
        return _json({"prompt": await in_thread_if_large(self._apply_template, raw)})

    def _tokenize(self, raw: bytes) -> list[int]:
        body = self._read(raw, TokenizeBody)
        prompts = self._service.prompts
        if body.messages is not None:
            return prompts.of_messages(body)
        if body.prompt is not None:
            return prompts.of_text(body.prompt, special=body.add_special_tokens is not False)
        if body.content is None:
            raise FieldError("prompt", "it is missing: give `prompt`, `messages` or `content`")
        if body.parse_special is False:
            raise FieldError("parse_special", "texts of special tokens are always read as those")
        return prompts.of_text(body.content, special=body.add_special is True)

    def _detokenize(self, raw: bytes) -> str:
        body = self._read(raw, DetokenizeBody)
        return self._service.prompts.text_of_ids(body.tokens)

    def _apply_template(self, raw: bytes) -> str:
        return self._service.prompts.text_of_messages(self._read(raw, TokenizeBody))

    def _read(self, raw: bytes, kind: type[Any]) -> Any:
        body = decode(raw, kind)
        if body.model is not None and body.model != self._service.model.name:
            raise unknown_model(body.model, self._service.model.name)
        return body


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
