"""The world's messages as the APIs have them: chat, Anthropic's blocks, the items of Responses."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from tests.trees.world.messages import Message, calls_of, text_of

Body = dict[str, Any]


class Form(Enum):
    CHAT = "chat"
    BLOCKS = "blocks"
    ITEMS = "items"


def request_bodies(messages: list[Message], form: Form) -> list[bytes]:
    match form:
        case Form.CHAT:
            bodies = messages
        case Form.BLOCKS:
            bodies = _marked(_merged([_in_blocks(message) for message in messages]))
        case Form.ITEMS:
            bodies = [item for message in messages for item in _items(message)]
    return [encoded(body) for body in bodies]


def response_body(message: Message, form: Form) -> bytes:
    match form:
        case Form.CHAT:
            return encoded(message)
        case Form.BLOCKS:
            return encoded(_in_blocks(message))
        case Form.ITEMS:
            return encoded(_items(message))


def tool_bodies(tools: list[Message], form: Form) -> list[bytes]:
    functions = [tool["function"] for tool in tools]
    match form:
        case Form.CHAT:
            return [encoded(tool) for tool in tools]
        case Form.BLOCKS:
            return [encoded({"name": f["name"], "input_schema": f["parameters"]}) for f in functions]
        case Form.ITEMS:
            return [encoded({"type": "function", **f}) for f in functions]


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


def _in_blocks(message: Message) -> Body:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text_of(message)}
        return {"role": "user", "content": [result]}
    blocks: list[Body] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": "s"})
    if text_of(message):
        blocks.append({"type": "text", "text": text_of(message)})
    for call in calls_of(message):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return {"role": message["role"], "content": blocks}


def _merged(messages: list[Body]) -> list[Body]:
    """User messages that follow each other are one."""
    merged: list[Body] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] == "user":
            merged[-1] = merged[-1] | {"content": merged[-1]["content"] + message["content"]}
        else:
            merged.append(message)
    return merged


def _marked(messages: list[Body]) -> list[Body]:
    """The marker for the engine's cache stands on the last message of each request."""
    *before, last = messages
    if not last["content"]:
        return messages
    *blocks, block = last["content"]
    return [*before, last | {"content": [*blocks, block | {"cache_control": {"type": "ephemeral"}}]}]


def _items(message: Message) -> list[Body]:
    if message["role"] == "tool":
        text = text_of(message)
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": text}]
    items: list[Body] = []
    if message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": message["reasoning_content"]}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary})
    if text_of(message):
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": text_of(message)}]
        items.append({"type": "message", "role": message["role"], "content": content})
    for call in calls_of(message):
        function = call["function"]
        items.append({"type": "function_call", "call_id": call["id"], **function})
    return items
