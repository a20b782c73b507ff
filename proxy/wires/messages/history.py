"""`system` and `messages` of a Messages request as the message list of chat/completions.

- `system` becomes one system message, its blocks joined without a separator; Claude Code's billing
  line is no part of it. A `system` message inside `messages` stays where it stands.
- Tool results become `tool` messages, each where it stands; what a user message says before or after them
  becomes user messages. Texts of one result are joined by line ends; its images and files follow it in a user
  message, since chat's `tool` messages hold text alone.
- `is_error` has no place in chat and is not added to the text: harnesses write the error into it, and another
  text would not be what the harness said. It is flagged (`is_error_left_out`); a failed result without
  any text says `Error`, so that it does not read as success.
- An assistant message becomes one: reasoning, text, tool calls, the order in which models write them. Where
  thinking comes after text, a second message begins, so that the order survives. Once a call stands,
  nothing may come between it and its result: later text joins the message's text as it does in an engine's
  own plain answer, and `block_order_changed` says so.
- Arguments of a tool call are the text that was sampled, where that is known and means the same as `input`;
  otherwise `input` in the spelling that models sample most (`{"a": 1, "b": "é"}`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gyre.proxy.arguments import same_arguments
from gyre.proxy.canonical import BILLING
from gyre.proxy.wires.messages.blocks import RAW
from gyre.proxy.wires.messages.content import blocks_at, joined, parts_of
from gyre.proxy.wires.messages.lost import Lost, list_at, object_at, refusal, spelled, text_at
from gyre.proxy.wires.translation import Dialect, Json

_MESSAGE_KEYS = {"role", "content", "id", "type"}


def chat_messages(body: Json, dialect: Dialect, lost: Lost) -> list[Json]:
    """The whole conversation.

    Raises:
        RequestError: a message, block or role is not of a shape that can be carried.
    """
    said = list_at(body.get("messages"), "messages")
    if not said:
        raise refusal("messages", "must have at least one message")
    chat = _system(body["system"], "system", lost) if body.get("system") else []
    for number, message in enumerate(said):
        chat += _message(object_at(message, f"messages[{number}]"), f"messages[{number}]", dialect, lost)
    return chat


def _message(message: Json, place: str, dialect: Dialect, lost: Lost) -> list[Json]:
    role, content = message.get("role"), message.get("content")
    for key in sorted(message.keys() - _MESSAGE_KEYS):
        lost.add(f"message_field_left_out:{key}")
    match role:
        case "system":
            return _system(content, f"{place}.content", lost)
        case "user" | "assistant" if isinstance(content, str):
            return [{"role": role, "content": content}]
        case "user":
            return _user(content, f"{place}.content", lost)
        case "assistant":
            return _assistant(content, f"{place}.content", dialect, lost)
    raise refusal(f"{place}.role", "must be `user`, `assistant` or `system`")


def _system(content: Any, place: str, lost: Lost) -> list[Json]:
    if isinstance(content, str):
        # Written as a string the line is no block of its own.
        text = content.partition("\n")[2] if content.startswith(BILLING) else content
    else:
        text = "".join(
            part
            for at, kind, block in blocks_at(content, place)
            if not (part := _system_text(block, kind, at, lost)).startswith(BILLING)
        )
    return [{"role": "system", "content": text}] if text else []


def _system_text(block: Json, kind: str, place: str, lost: Lost) -> str:
    if kind != "text":
        raise refusal(place, f"has the type `{kind}`, but a system prompt holds only text")
    return "".join(part["text"] for part in parts_of(block, kind, place, lost))


def _user(content: Any, place: str, lost: Lost) -> list[Json]:
    chat: list[Json] = []
    parts: list[Json] = []
    for at, kind, block in blocks_at(content, place):
        if kind == "tool_result":
            chat += _user_message(parts) + _result(block, at, lost)
            parts = []
        else:
            parts += parts_of(block, kind, at, lost)
    return chat + _user_message(parts)


def _user_message(parts: list[Json]) -> list[Json]:
    return [{"role": "user", "content": joined(parts)}] if parts else []


def _result(block: Json, place: str, lost: Lost) -> list[Json]:
    ident = text_at(block.get("tool_use_id"), f"{place}.tool_use_id")
    content = block.get("content")
    parts: list[Json] = []
    if isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    elif content is not None:
        for at, kind, inner in blocks_at(content, f"{place}.content"):
            parts += parts_of(inner, kind, at, lost)
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    others = [part for part in parts if part["type"] != "text"]
    if block.get("is_error"):
        text = text or ("" if others else "Error")
        lost.add("is_error_left_out")
    return [{"role": "tool", "tool_call_id": ident, "content": text}, *_user_message(others)]


@dataclass(slots=True)
class _Turn:
    """An assistant message that is being put together."""

    reasoning: list[str] = field(default_factory=list)
    parts: list[Json] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)

    def message(self, dialect: Dialect) -> Json:
        message: Json = {"role": "assistant", "content": joined(self.parts) if self.parts else None}
        if self.reasoning:
            message[dialect.reasoning] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _assistant(content: Any, place: str, dialect: Dialect, lost: Lost) -> list[Json]:
    turns = [_Turn()]
    for at, kind, block in blocks_at(content, place):
        if kind == "tool_use":
            turns[-1].calls.append(_call(block, at, dialect))
        elif kind in ("thinking", "redacted_thinking"):
            _think(turns, block, kind, at, lost)
        elif kind in ("image", "document", "search_result", "tool_result"):
            raise refusal(at, f"has the type `{kind}`, which an assistant message cannot hold")
        else:
            _say(turns[-1], parts_of(block, kind, at, lost), lost)
    return [turn.message(dialect) for turn in turns]


def _think(turns: list[_Turn], block: Json, kind: str, place: str, lost: Lost) -> None:
    if kind == "redacted_thinking":
        lost.add("redacted_thinking_left_out")
        return
    text = text_at(block.get("thinking"), f"{place}.thinking")
    if not text:
        if block.get("signature"):
            # The server kept the text to itself.
            lost.add("redacted_thinking_left_out")
        return
    if turns[-1].calls:
        lost.add("block_order_changed")
    elif turns[-1].parts:
        turns.append(_Turn())
    turns[-1].reasoning.append(text)


def _say(turn: _Turn, parts: list[Json], lost: Lost) -> None:
    for part in parts:
        if turn.calls and part["text"].strip():
            lost.add("block_order_changed")
        if turn.calls and turn.parts:
            last = turn.parts[-1]
            turn.parts[-1] = {"type": "text", "text": last["text"] + part["text"]}
        else:
            turn.parts.append(part)


def _call(block: Json, place: str, dialect: Dialect) -> Json:
    ident = text_at(block.get("id"), f"{place}.id")
    name = text_at(block.get("name"), f"{place}.name")
    given = block.get("input")
    value = {} if given is None else object_at(given, f"{place}.input")
    text = spelled(value, f"{place}.input")
    known = dialect.sampled(ident)
    arguments = next((said for said in known if same_arguments(said, text)), text)
    if value.keys() == {RAW} and value[RAW] in known:
        arguments = value[RAW]  # what was no JSON object came to the client wrapped
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}
