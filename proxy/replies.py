"""Answers that the proxy gives itself, in OpenAI's form, and the one it rewrites."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gyre.proxy.errors import RequestError


def error_body(message: str, status: int, code: str) -> bytes:
    kind = "invalid_request_error" if status < 500 else "proxy_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def body_of(error: RequestError) -> bytes:
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    return error_body(message, error.status, error.code)


_OVERFLOW = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|available context size"
    r"|longer than the model's context length|prompt is too long|maximum model length",
    re.IGNORECASE,
)


def overflow_in_openai_form(body: bytes) -> bytes:
    """A context overflow with the code by which agents recognise it; they compact only then.

    Engines word it differently (llama.cpp: `exceed_context_size_error`). The message stays.
    """
    if not _OVERFLOW.search(body[:10_000].decode(errors="replace")):
        return body
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if not isinstance(error, dict) or error.get("code") == "context_length_exceeded":
        return body
    fields: dict[str, Any] = {
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    message = str(error.get("message", ""))
    if "maximum context length" not in message:
        message += " (this exceeds the model's maximum context length)"
    return msgspec.json.encode({"error": {**error, **fields, "message": message}})
