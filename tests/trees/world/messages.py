"""Messages as OpenAI's chat API has them: the form in which the world thinks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str = "", calls: Iterable[Message] = (), reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = list(calls)
    if calls:
        message["tool_calls"] = calls
    return message


def tool_call(call_id: str, name: str, arguments: dict[str, Any]) -> Message:
    """Arguments as the model writes them: without spaces."""
    text = json.dumps(arguments, separators=(",", ":"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool(name: str) -> Message:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def respaced(message: Message) -> Message:
    """The same message with arguments written as another JSON library would."""
    calls = [
        call | {"function": call["function"] | {"arguments": spaced(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | {"tool_calls": calls} if calls else message


def spaced(arguments: str) -> str:
    return json.dumps(json.loads(arguments), indent=1)


def calls_of(message: Message) -> list[Message]:
    return message.get("tool_calls") or []


def text_of(message: Message) -> str:
    return message.get("content") or ""


def rounds(history: list[Message]) -> int:
    """Index at which the latest round begins: the last assistant message that calls tools."""
    return max((i for i, message in enumerate(history) if calls_of(message)), default=len(history))


def transcript(history: list[Message]) -> str:
    """The conversation as text, as agents do that ask another prompt for a summary."""
    lines = []
    for message in history:
        lines.append(f"[{message['role']}] {text_of(message)}")
        lines += [
            f"[call] {call['function']['name']} {call['function']['arguments']}" for call in calls_of(message)
        ]
    return "\n".join(lines)
