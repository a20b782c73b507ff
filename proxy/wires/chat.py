"""chat/completions: a streamed answer put together again as the plain form would have it."""

from __future__ import annotations

from typing import Any

import msgspec

_JOINED = ("content", "reasoning", "reasoning_content", "refusal")


class MessageBuilder:
    """Collects one choice's deltas; `message()` is the message of the non-stream form."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._text: dict[str, list[str]] = {}
        self._calls: dict[int, _Call] = {}
        self._function = _Function()
        """Of the form that came before tool calls."""

    def add(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if isinstance(value, str) and key in _JOINED:
                self._text.setdefault(key, []).append(value)
            elif key == "tool_calls" and isinstance(value, list):
                self._add_calls(value)
            elif key == "function_call" and isinstance(value, dict):
                self._function.add(value)
            elif isinstance(value, list) and isinstance(known := self._fields.get(key), list):
                known += value
            elif value is not None or key not in self._fields:
                self._fields[key] = value

    def message(self) -> bytes:
        """The whole message as JSON."""
        message = {"role": "assistant", "content": None, **self._fields}
        message |= {key: "".join(parts) for key, parts in self._text.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index].whole() for index in sorted(self._calls)]
        if function := self._function.whole():
            message["function_call"] = function
        return msgspec.json.encode(message)

    @property
    def empty(self) -> bool:
        called = self._calls or self._function.whole()
        return not called and not any("".join(parts) for parts in self._text.values())

    def _add_calls(self, calls: list[Any]) -> None:
        """Parts of one call carry its index; parallel calls interleave."""
        for part in calls:
            if isinstance(part, dict):
                index = part.get("index")
                at = index if type(index) is int else len(self._calls)
                self._calls.setdefault(at, _Call()).add(part)


class _Function:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._arguments: list[str] = []

    def add(self, part: dict[str, Any]) -> None:
        for key, value in part.items():
            if key == "arguments" and isinstance(value, str):
                self._arguments.append(value)
            elif value is not None:
                self._fields[key] = value

    def whole(self) -> dict[str, Any]:
        return self._fields | ({"arguments": "".join(self._arguments)} if self._arguments else {})


class _Call:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._function = _Function()

    def add(self, part: dict[str, Any]) -> None:
        for key, value in part.items():
            if key == "function" and isinstance(value, dict):
                self._function.add(value)
            elif key != "index" and value is not None:
                self._fields[key] = value

    def whole(self) -> dict[str, Any]:
        function = self._function.whole()
        return self._fields | ({"function": function} if function else {})
