"""Errors as Messages says them, in the words by which Claude Code knows what to do.

It compacts on a 400 that says `prompt is too long: N tokens > M maximum`, asks again for fewer tokens on a
400 that says ``input length and `max_tokens` exceed context limit: N + K > M``, and waits and tries again
on `overloaded_error` and `rate_limit_error`.
"""

from __future__ import annotations

import re

import msgspec

from gyre.proxy.wires.translation import Json

OVERFLOW = "context_length_exceeded"
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_LIMIT = (
    r"maximum context length (?:is|of) (\d+)",
    r"maximum model length of (\d+)",
    r"max_model_len (\d+)",
    r"context (?:size|length|window) (?:of |is )?\(?(\d+)",
)
_PROMPT = (
    r"(\d+) (?:of )?input tokens",
    r"prompt \(length (\d+)",
    r"prompt length (\d+)",
    r"(\d+) in the messages",
    r"(\d+) tokens from the input",
    r"request \((\d+) tokens",
    r"input \((\d+) tokens",
    r"messages resulted in (\d+) tokens",
)
_OUTPUT = (
    r"(\d+) output tokens",
    r"(\d+) in the completion",
    r"(\d+) tokens for the completion",
)


def error_type(status: int, code: str) -> str:
    """Anthropic's type of an error with this HTTP status."""
    if code == OVERFLOW:
        return "invalid_request_error"
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_of(status: int, message: str, code: str) -> Json:
    """The error object, as a plain body and as the data of an `error` event."""
    said = _overflow(message) if code == OVERFLOW else message
    return {"type": "error", "error": {"type": error_type(status, code), "message": said}}


def error_body(status: int, message: str, code: str) -> bytes:
    """The plain form of an error. The HTTP status of a context overflow should be 400."""
    return msgspec.json.encode(error_of(status, message, code))


def _overflow(message: str) -> str:
    """An engine's words behind those that Claude Code looks for, with numbers where the engine has them."""
    prompt, limit = _number(_PROMPT, message), _number(_LIMIT, message)
    output = _number(_OUTPUT, message)
    if message.startswith(("prompt is too long", "input length and `max_tokens` exceed")):
        return message
    if prompt is None or limit is None:
        return f"prompt is too long: {message}"
    if prompt > limit or output is None or prompt + output <= limit:
        return f"prompt is too long: {prompt} tokens > {limit} maximum ({message})"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {limit}, "
        f"decrease input length or `max_tokens` and try again ({message})"
    )


def _number(patterns: tuple[str, ...], message: str) -> int | None:
    for pattern in patterns:
        if found := re.search(pattern, message, re.IGNORECASE):
            return int(found[1])
    return None
