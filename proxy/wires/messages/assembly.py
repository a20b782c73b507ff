"""A native Messages answer put together again from its events, or taken from its plain form."""

from __future__ import annotations

from typing import Any

import orjson

from gyre.proxy.wires.translation import Json

_JOINED = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
    "signature_delta": "signature",
}
"""Fields of deltas that are put together, by the delta's type."""


class MessagesAssembly:
    """An `Assembly`. What came of a stream that was cut is kept; arguments that are no JSON stay text.

    Counts of usage are cumulative: those of `message_delta` replace those of `message_start`, field by field.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed: str | None = None
        self.finish_reason: str | None = None
        self.usage: Json | None = None
        self._role = "assistant"
        self._meta: Json = {}
        self._blocks: dict[int, _Block] = {}

    def add(self, event: Json) -> None:
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._fields(message)
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = _Block(block)
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                self._blocks.setdefault(index, _Block({})).add(delta)
            case {"type": "message_delta"}:
                fields = event.get("delta")
                self._fields({**(fields if isinstance(fields, dict) else {}), "usage": event.get("usage")})
            case {"type": "message_stop"}:
                self.done = True
            case {"type": "error"}:
                self.failed = _problem(event.get("error"))

    def message(self) -> Json:
        return {
            "role": self._role,
            "content": [self._blocks[index].whole() for index in sorted(self._blocks)],
        }

    def meta(self) -> Json:
        """`id`, `model`, `stop_reason` and the like."""
        return dict(self._meta)

    def _fields(self, fields: Json) -> None:
        for key, value in fields.items():
            match key, value:
                case "usage", dict():
                    told = {name: count for name, count in value.items() if count is not None}
                    self.usage = {**(self.usage or {}), **told}
                case "role", str():
                    self._role = value
                case "content", list():
                    for block in value:
                        self._blocks[len(self._blocks)] = _Block(block if isinstance(block, dict) else {})
                case "role" | "content" | "usage", _:
                    pass
                case _, None if key in self._meta:
                    pass
                case _:
                    self._meta[key] = value
        if isinstance(reason := fields.get("stop_reason"), str):
            self.finish_reason = reason


def read_plain(answer: Json) -> MessagesAssembly:
    """A plain answer, or a plain error, as the stream of the same answer would have left it."""
    assembly = MessagesAssembly()
    if answer.get("type") == "error":
        assembly.add(answer)
    else:
        assembly.add({"type": "message_start", "message": answer})
        assembly.done = isinstance(answer.get("content"), list)
    return assembly


class _Block:
    def __init__(self, fields: Json) -> None:
        self._fields = dict(fields)
        self._parts: dict[str, list[str]] = {}

    def add(self, delta: Json) -> None:
        kind = delta.get("type")
        field = _JOINED.get(kind) if isinstance(kind, str) else None
        if field and isinstance(text := delta.get(field), str):
            self._parts.setdefault(field, []).append(text)
        elif kind == "citations_delta":
            known = self._fields.get("citations")
            self._fields["citations"] = [*(known if isinstance(known, list) else []), delta.get("citation")]

    def whole(self) -> Json:
        block = dict(self._fields)
        for field, parts in self._parts.items():
            text = "".join(parts)
            if field == "partial_json":
                if text:
                    block["input"] = _parsed(text)
            else:
                begun = block.get(field)
                block[field] = (begun if isinstance(begun, str) else "") + text
        return block


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _problem(error: Any) -> str:
    match error:
        case {"message": str(message), "type": str(kind)}:
            return f"{kind}: {message}"
        case {"message": str(message)}:
            return message
    return "the engine sent an error without words"
