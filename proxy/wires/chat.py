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
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if isinstance(value, str) and key in _JOINED:
                self._text.setdefault(key, []).append(value)
            elif key == "tool_calls" and isinstance(value, list):
                for call in value:
                    self._add_call(call)
            elif value is not None or key not in self._fields:
                self._fields[key] = value

    def message(self) -> bytes:
        """The whole message as JSON."""
        message = {"role": "assistant", "content": None, **self._fields}
        message |= {key: "".join(parts) for key, parts in self._text.items()}
        if self._calls:
            message["tool_calls"] = [_finished(self._calls[index]) for index in sorted(self._calls)]
        return msgspec.json.encode(message)

    @property
    def empty(self) -> bool:
        return not self._calls and not any("".join(parts) for parts in self._text.values())

    def _add_call(self, call: dict[str, Any]) -> None:
        """Parts of one call carry its index; parallel calls interleave."""
        whole = self._calls.setdefault(call.get("index", len(self._calls)), {})
        for key, value in call.items():
            if key == "function" and isinstance(value, dict):
                _add_function(whole.setdefault("function", {}), value)
            elif key != "index" and value is not None:
                whole[key] = value


def _add_function(function: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if key == "arguments" and isinstance(value, str):
            function.setdefault("arguments", []).append(value)
        elif value is not None:
            function[key] = value


def _finished(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if function and isinstance(function.get("arguments"), list):
        function = {**function, "arguments": "".join(function["arguments"])}
    return {**call, "function": function} if function else call
