"""What is said of a request that cannot be translated."""

from __future__ import annotations

from typing import Any

from gyre.proxy.errors import RequestError


def malformed(place: str, problem: str) -> RequestError:
    return RequestError(f"`{place}` {problem}")


def text_at(value: dict[str, Any], key: str, place: str) -> str:
    """A string that has to be there.

    Raises:
        RequestError: it is not.
    """
    text = value.get(key)
    if not isinstance(text, str):
        raise malformed(_at(place, key), "must be a string")
    return text


def named_at(value: dict[str, Any], key: str, place: str) -> str:
    """The same where an empty one is as bad as none."""
    if not (text := text_at(value, key, place)):
        raise malformed(_at(place, key), "must not be empty")
    return text


def note(lost: list[str], flag: str) -> None:
    """Remember once that something could not be carried."""
    if flag not in lost:
        lost.append(flag)


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
