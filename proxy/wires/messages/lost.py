"""What a translation could not carry; reading a body without guessing."""

from __future__ import annotations

import json
from typing import Any

from gyre.proxy.errors import RequestError


class Lost:
    """Flags for what was left out, each once, in the order met."""

    def __init__(self) -> None:
        self.flags: list[str] = []

    def add(self, flag: str) -> None:
        if flag not in self.flags:
            self.flags.append(flag)


def refusal(place: str, why: str, hint: str = "") -> RequestError:
    """A 400 that names the place in the body, like `messages[3].content[1]`."""
    return RequestError(f"`{place}` {why}", status=400, code="invalid_request", hint=hint)


def text_at(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise refusal(place, "must be a string")
    return value


def object_at(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusal(place, "must be an object")
    return value


def list_at(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise refusal(place, "must be a list")
    return value


def spelled(value: Any, place: str) -> str:
    """JSON as models write it most: `{"a": 1, "b": "é"}`."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise refusal(place, "is nested too deeply") from None
