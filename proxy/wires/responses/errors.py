"""Errors in the forms by which clients know what to do.

As Codex 0.171 reads them: `context_length_exceeded` ends a turn and makes a compaction try again with
less, in a stream as in a plain body. In a stream `rate_limit_exceeded` and `server_error` are tried
again and `server_is_overloaded` is not; as a plain 503 it is. A plain 429 is tried again only with
`retry-after`.
"""

from __future__ import annotations

import msgspec

OVERFLOW = "context_length_exceeded"
_KEPT = frozenset((OVERFLOW, "insufficient_quota"))
_OVERLOADED = (503, 529)


def error_body(status: int, message: str, code: str) -> bytes:
    """A plain error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == 429:
        kind = "rate_limit_error"
    if code not in _KEPT:
        code = "rate_limit_exceeded" if status == 429 else code
        code = "server_is_overloaded" if status in _OVERLOADED else code
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def code_in_stream(status: int, code: str) -> str:
    """`error.code` of `response.failed`, where no status says what may be tried again."""
    if code in _KEPT:
        return code
    if status == 429:
        return "rate_limit_exceeded"
    return "server_error" if status >= 500 else "invalid_prompt"
