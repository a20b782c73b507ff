"""One answer of chat/completions on its way back as Messages events, and as the plain message."""

from __future__ import annotations

from typing import Any

import msgspec

from gyre.proxy.wires.messages.blocks import Blocks, Kind
from gyre.proxy.wires.messages.ending import stop_reason, usage_of
from gyre.proxy.wires.messages.errors import error_of
from gyre.proxy.wires.translation import Ending, Json


class MessagesWriter:
    """A `Writer`. A whole message given as one delta makes the same answer as its deltas."""

    def __init__(self, call_id: str, model: str) -> None:
        self._blocks = Blocks(f"toolu_{call_id}")
        self._refused = False
        self._keys: dict[str, int] = {}
        """Of calls by their id, for engines that leave the index out."""
        self._prompt_tokens: int | None = None
        self._message: Json = {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(None, None),
        }

    def start(self, prompt_tokens: int | None) -> bytes:
        self._prompt_tokens = prompt_tokens
        self._message["usage"] = usage_of(None, prompt_tokens)
        return _events([{"type": "message_start", "message": self._message}])

    def delta(self, delta: Json) -> bytes:
        events: list[Json] = []
        # Some engines say the same under both names.
        if thought := _text(delta.get("reasoning")) or _text(delta.get("reasoning_content")):
            events += self._blocks.add(Kind.THINKING, thought)
        events += self._blocks.add(Kind.TEXT, _text(delta.get("content")))
        if refusal := _text(delta.get("refusal")):
            self._refused = True
            events += self._blocks.add(Kind.TEXT, refusal)
        calls = delta.get("tool_calls")
        for part in calls if isinstance(calls, list) else ():
            if isinstance(part, dict):
                events += self._call(self._key(part), _text(part.get("id")), part.get("function"))
        if delta.get("function_call"):
            events += self._call(-1, "", delta["function_call"])
        return _events(events)

    def end(self, ending: Ending) -> bytes:
        events = self._blocks.close()
        reason, sequence = stop_reason(ending, self._blocks.calls, self._refused)
        usage = usage_of(ending.usage, self._prompt_tokens)
        stop = {"stop_reason": reason, "stop_sequence": sequence}
        self._message |= {**stop, "usage": usage, "content": [block.whole() for block in self._blocks.all]}
        events += [{"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]
        return _events(events)

    def failed(self, status: int, message: str, code: str) -> bytes:
        return _events([error_of(status, message, code)])

    def answer(self) -> Json:
        return self._message

    def _key(self, part: Json) -> int:
        """Parts of one call carry its index, or at least its id; a part with neither is a call."""
        index, ident = part.get("index"), _text(part.get("id"))
        if type(index) is not int:
            index = self._keys.get(ident, len(self._blocks.calls))
        if ident:
            self._keys.setdefault(ident, index)
        return index

    def _call(self, key: int, ident: str, function: Any) -> list[Json]:
        said = function if isinstance(function, dict) else {}
        return self._blocks.call(key, ident, _text(said.get("name")), _text(said.get("arguments")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _events(events: list[Json]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event)) for event in events
    )
