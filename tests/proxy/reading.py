"""What a row of the journal says, in plain Python values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
import numpy as np

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.envelope import restore

Json = dict[str, Any]
Key = tuple[str, int, int]


def ids_of(packed: bytes | None) -> list[int]:
    assert packed is not None
    return [int(token) for token in np.frombuffer(packed, "<i4")]


def logprobs_of(row: CallRecord) -> list[float]:
    assert row.logprobs is not None
    return [float(value) for value in np.frombuffer(row.logprobs, "<f4")]


def key_of(row: CallRecord) -> Key:
    return row.call_id, row.attempt, row.choice


def parent_of(row: CallRecord) -> Key | None:
    return (row.parent_call_id, row.parent_attempt, row.parent_choice) if row.parent_call_id else None


def prompt_of(rows: Iterable[CallRecord], row: CallRecord) -> list[int]:
    """The whole prompt, by way of the row's parents."""
    named = {key_of(r): r for r in rows}
    suffix = ids_of(row.prompt_suffix)
    parent = parent_of(row)
    if parent is None:
        return suffix
    whole = prompt_of(named.values(), named[parent]) + (ids_of(named[parent].output))
    return whole[: row.prompt_shared] + suffix


def message_hashes(rows: Iterable[CallRecord], row: CallRecord) -> list[bytes]:
    named = {key_of(r): r for r in rows}
    parent = parent_of(row)
    before = message_hashes(named.values(), named[parent]) if parent else []
    return before[: row.messages_shared] + row.message_suffix


def body_of(rows: Sequence[CallRecord], row: CallRecord) -> bytes:
    """The request body, from whatever the log keeps of it."""
    if row.raw_request is not None:
        return row.raw_request
    assert row.request is not None
    texts = {new.hash: new.body for r in rows for new in r.new_messages}
    messages = [texts[address] for address in message_hashes(rows, row)]
    prompt = prompt_of(rows, row) if row.prompt_suffix is not None else None
    return restore(row.request, messages, [texts[address] for address in row.tools], prompt)


def response_of(row: CallRecord) -> Json:
    assert row.response is not None
    message: Json = json.loads(row.response)
    return message


def events_of(answer: httpx.Response | bytes) -> list[Json]:
    """The JSON of each event of a stream; `[DONE]` is left out."""
    text = (answer if isinstance(answer, bytes) else answer.content).decode()
    blocks = [
        [line for line in block.split("\n") if line.startswith("data: ")] for block in text.split("\n\n")
    ]
    data = ["\n".join(line[6:] for line in lines) for lines in blocks]
    return [json.loads(text) for text in data if text not in ("", "[DONE]")]


def content_of(answer: httpx.Response | bytes) -> str:
    """The text that a streaming client puts together, of choice 0."""
    choices = [choice for event in events_of(answer) for choice in event.get("choices", ())]
    return "".join(c.get("delta", {}).get("content") or "" for c in choices if c["index"] == 0)
