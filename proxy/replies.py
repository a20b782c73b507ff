"""Answers that the proxy gives itself in each wire's form, and engines' errors that it rewrites."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import orjson

from gyre.proxy.calls import Wire
from gyre.proxy.errors import RequestError
from gyre.proxy.sse import event_of
from gyre.proxy.wires import known

OVERFLOW_CODE = "context_length_exceeded"
_OVERLOADED = 529
"""What Anthropic says where others say 503."""


def error_body(message: str, status: int, code: str) -> bytes:
    """In OpenAI's form, as chat/completions has it."""
    kind = "invalid_request_error" if status < 500 else "proxy_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_in(wire: Wire, status: int, message: str, code: str) -> bytes:
    """An error in the form that clients of `wire` know."""
    if wire in (Wire.MESSAGES, Wire.COUNT_TOKENS, Wire.RESPONSES):
        return known.error_body(wire, status, message, code)
    return error_body(message, status, code)


def error_event(wire: Wire, status: int, message: str, code: str) -> bytes:
    """The same in a stream of the wire that the engine began itself."""
    if wire == Wire.MESSAGES:
        return b"event: error\n" + event_of(known.error_body(wire, status, message, code))
    said = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
    return b"event: error\n" + event_of(orjson.dumps(said))


def body_of(error: RequestError, wire: Wire = Wire.CHAT) -> bytes:
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    return error_in(wire, error.status, message, error.code)


def client_status(wire: Wire, status: int) -> int:
    """Agents of Messages take 529 for an overload, which they sit out longer than a fault."""
    return _OVERLOADED if status == 503 and wire == Wire.MESSAGES else status


class Said(NamedTuple):
    """What an engine said went wrong."""

    status: int
    message: str
    code: str


def said_of(body: bytes, status: int = 502) -> Said:
    """Status, message and code of an engine's error; a context overflow has one status and one code."""
    text = body[:2000].decode(errors="replace")
    if is_overflow(body):
        return Said(400, _message(body) or text, OVERFLOW_CODE)
    error = _error(body)
    code = error.get("code")
    if type(code) is int and 400 <= code < 600:
        status, code = code, None
    return Said(status, _message(body) or text, str(code or error.get("type") or "upstream_error"))


def _error(body: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    return error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}


def _message(body: bytes) -> str:
    return str(_error(body).get("message") or "")


_OVERFLOW = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|available context size"
    r"|longer than the model's context length|prompt is too long|maximum model length",
    re.IGNORECASE,
)


_SYSTEM_REFUSED = re.compile(
    r"system (message|role|prompt)[^.]{0,60}(begin|first|start|only)|only[^.]{0,60}system message",
    re.IGNORECASE,
)


def is_system_refused(body: bytes) -> bool:
    """Whether a template says that a system message may only be the first."""
    return _SYSTEM_REFUSED.search(said_of(body).message[:500]) is not None


def is_overflow(body: bytes) -> bool:
    """Whether an engine's error says that the prompt is longer than its window."""
    return _OVERFLOW.search(body[:10_000].decode(errors="replace")) is not None


def overflow_in_openai_form(body: bytes) -> bytes:
    """A context overflow with the code by which agents recognise it; they compact only then.

    Engines word it differently (llama.cpp: `exceed_context_size_error`). The message stays.
    """
    if not is_overflow(body):
        return body
    error = _error(body)
    if not error or error.get("code") == OVERFLOW_CODE:
        return body
    fields: dict[str, Any] = {"type": "invalid_request_error", "param": "messages", "code": OVERFLOW_CODE}
    message = str(error.get("message", ""))
    if "maximum context length" not in message:
        message += " (this exceeds the model's maximum context length)"
    return msgspec.json.encode({"error": {**error, **fields, "message": message}})
