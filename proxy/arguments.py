"""Arguments of tool calls as JSON values: the same, however a harness writes them. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
import xxhash

_EXACT = 2**53
"""Up to here a double holds every integer."""


def levelled(value: Any) -> Any:
    """A JSON value with whole numbers as integers: JavaScript writes 1.0 as 1, and knows no larger ones."""
    match value:
        case dict():
            return {key: levelled(item) for key, item in value.items()}
        case list():
            return [levelled(item) for item in value]
        case float() if abs(value) <= _EXACT and value.is_integer():
            return int(value)
        case int() if abs(value) > _EXACT:
            return float(value)
    return value


def same_arguments(one: str, other: str) -> bool:
    """Whether two texts are one JSON value, however they are spelled; no text is no arguments."""
    if one == other:
        return True
    mine = _digest(one)
    return mine is not None and mine == _digest(other)


@lru_cache(1024)
def _digest(text: str) -> bytes | None:
    """Of the levelled value; None for what is no JSON. The same texts are asked for in call after call."""
    try:
        value = levelled(orjson.loads(text or "{}"))
        return xxhash.xxh3_128_digest(sorted_json(value).encode())
    except (orjson.JSONDecodeError, RecursionError):
        return None


def sorted_json(value: Any) -> str:
    """One text for a value.

    Raises:
        RecursionError: it is nested deeper than can be written.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as problem:
        # It reads deeper than it writes.
        raise RecursionError(str(problem)) from problem
