"""A plain chat answer as the stream that its client asked for: what an engine cannot stream with ids."""

from __future__ import annotations

from typing import Any

import orjson

from gyre.proxy.capture.stream import DONE
from gyre.proxy.sse import event_of

_NOT_OF_CHUNKS = ("choices", "usage", "object")


def as_chunks(answer: bytes, usage: bool) -> bytes:
    """Each choice in one chunk, its end in another; with `usage` a last one that counts."""
    said: dict[str, Any] = orjson.loads(answer)
    head = {key: value for key, value in said.items() if key not in _NOT_OF_CHUNKS}
    head["object"] = "chat.completion.chunk"
    chunks = [chunk for choice in said["choices"] for chunk in _of_choice(choice)]
    events = [event_of(orjson.dumps({**head, "choices": [chunk]})) for chunk in chunks]
    if usage and said.get("usage") is not None:
        events.append(event_of(orjson.dumps({**head, "choices": [], "usage": said["usage"]})))
    return b"".join([*events, event_of(DONE)])


def _of_choice(choice: dict[str, Any]) -> list[dict[str, Any]]:
    message = choice.get("message") or {}
    delta = dict(message)
    if isinstance(calls := message.get("tool_calls"), list):
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    index = choice.get("index", 0)
    logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") is not None else {}
    begun = {"index": index, "delta": delta, "finish_reason": None, **logprobs}
    return [begun, {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}]
