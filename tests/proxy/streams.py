"""Hand-made streams for the fake engine, and a client that reads them as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.engines.script import Answer

DONE = b"data: [DONE]\n\n"
Json = dict[str, Any]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: Json, *, top: Json | None = None, **choice: Any) -> bytes:
    """One event of a chat stream."""
    return event(
        {"id": "x", "model": "fake", "choices": [{"index": 0, "delta": delta, **choice}], **(top or {})}
    )


def streamed(*events: bytes, done: bool = True, **how: Any) -> Answer:
    """These events and `[DONE]`; `how` are further fields of the answer."""
    return sent([*events, DONE] if done else events, **how)


def sent(chunks: Iterable[bytes], **how: Any) -> Answer:
    """These chunks as an event stream."""
    return Answer(body=chunks, headers={"content-type": "text/event-stream"}, **how)
