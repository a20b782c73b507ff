"""What an engine or a hosted API counted, in whichever wire's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; None where nothing was said."""

    prompt: int | None = None
    """All of the prompt, what came from a cache included."""
    completion: int | None = None
    cached: int | None = None


def read_usage(data: bytes | None) -> Usage:
    """Chat and completions say `prompt_tokens`, Responses and Messages `input_tokens`.

    Messages leaves what was cached out of `input_tokens`; Responses does not.
    """
    try:
        fields = orjson.loads(data or b"null")
    except orjson.JSONDecodeError:
        return Usage()
    if not isinstance(fields, dict):
        return Usage()
    if "prompt_tokens" in fields or "input_tokens" not in fields:
        cached = _number(fields.get("prompt_tokens_details"), "cached_tokens")
        return Usage(_number(fields, "prompt_tokens"), _number(fields, "completion_tokens"), cached)
    if "total_tokens" in fields or "input_tokens_details" in fields:
        cached = _number(fields.get("input_tokens_details"), "cached_tokens")
        return Usage(_number(fields, "input_tokens"), _number(fields, "output_tokens"), cached)
    cached = _number(fields, "cache_read_input_tokens")
    parts = (_number(fields, "input_tokens"), cached, _number(fields, "cache_creation_input_tokens"))
    return Usage(sum(part or 0 for part in parts), _number(fields, "output_tokens"), cached)


def _number(fields: Any, key: str) -> int | None:
    value = fields.get(key) if isinstance(fields, dict) else None
    return value if type(value) is int else None
