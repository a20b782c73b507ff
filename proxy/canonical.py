"""Messages in canonical form: what a harness meant, however it wrote it this time. Pure.

A message list becomes a flat list of blocks, the same for chat messages, Anthropic messages and
Responses items, so that a message that was merged with its neighbour still compares block by block.
Dropped or levelled: `cache_control`, item ids, text in a list or alone, absent, null and empty
content, spelling of tool arguments, names in a namespace, Claude Code's billing line. Reasoning stays a
block of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from gyre.proxy.arguments import levelled, sorted_json
from gyre.proxy.wires.responses.arguments import PARAMETER
from gyre.proxy.wires.responses.names import BUILT_IN, flat_name
from gyre.proxy.wires.responses.sealed import reasoning_text

BILLING = "x-anthropic-billing-header"
"""How Claude Code's first system block begins; it differs from context to context and says nothing."""


class Kind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    """A tool call; `text` is the name and the arguments as sorted JSON."""
    RESULT = "result"
    """A tool's result."""
    OTHER = "other"
    """An image, a file, ...; `text` is its JSON."""


_MAY_BE_BLANK = (Kind.TEXT, Kind.REASONING)


class Block(NamedTuple):
    role: str
    kind: Kind
    ident: str
    """Tool-call id of calls and results."""
    text: str

    @property
    def skeleton(self) -> tuple[str, Kind, str]:
        """What stays when a tool's result is cleared."""
        return self.role, self.kind, self.ident


def blocks_of(body: bytes) -> list[Block]:
    """Blocks of one message, system block or item, or of a list of them.

    What is no JSON is one text, as is what is nested deeper than anybody means.
    """
    try:
        return _said(orjson.loads(body), "user")
    except (orjson.JSONDecodeError, RecursionError):
        return [Block("user", Kind.TEXT, "", body.decode(errors="replace"))]


def response_blocks(body: bytes | None) -> list[Block]:
    """The same for an assembled answer, whose role is always the assistant's."""
    if not body:
        return []
    try:
        return _said(orjson.loads(body), "assistant")
    except (orjson.JSONDecodeError, RecursionError):
        return [Block("assistant", Kind.TEXT, "", body.decode(errors="replace"))]


def arguments_of(block: Block) -> list[str]:
    """String values anywhere in a tool call's arguments."""
    try:
        return list(_strings(orjson.loads(block.text.partition("\n")[2])))
    except (orjson.JSONDecodeError, RecursionError):
        return [block.text.partition("\n")[2]]


def _said(value: Any, role: str) -> list[Block]:
    """Without blank text and reasoning: Claude Code drops the line ends that models write before a call."""
    return [block for block in _blocks(value, role) if block.kind not in _MAY_BE_BLANK or block.text.strip()]


def _blocks(value: Any, role: str) -> Iterator[Block]:
    match value:
        case str():
            yield Block(role, Kind.TEXT, "", value)
        case list():
            for item in value:
                yield from _blocks(item, role)
        case {"type": str(kind)} if kind not in ("message", "text"):
            yield from _item(value, kind, role)
        case {"role": str(given)}:
            yield from _message(value, given)
        case {"content": content}:
            yield from _content(content, role)
        case {"output": list(items)}:
            # An answer of Responses.
            yield from _blocks(items, role)
        case {"text": str(text)} if not text.startswith(BILLING):
            yield Block(role, Kind.TEXT, "", text)


def _message(value: dict[str, Any], role: str) -> Iterator[Block]:
    if role in ("tool", "function"):
        ident = str(value.get("tool_call_id") or value.get("name") or "")
        yield Block("tool", Kind.RESULT, ident, _flat(value.get("content")))
        return
    reasoning = value.get("reasoning_content") or value.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        yield Block(role, Kind.REASONING, "", reasoning)
    yield from _content(value.get("content"), role)
    calls = value.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield _function(role, call.get("id"), call.get("function"))
        else:
            yield Block(role, Kind.OTHER, "", sorted_json({"tool_call": call}))
    if isinstance(function := value.get("function_call"), dict):
        yield _function(role, None, function)


def _content(content: Any, role: str) -> Iterator[Block]:
    if content is None:
        return
    yield from _blocks(content, role)


def _item(value: dict[str, Any], kind: str, role: str) -> Iterator[Block]:
    """Content blocks of Anthropic messages and items of Responses."""
    match kind:
        case "input_text" | "output_text" | "refusal" | "summary_text" | "reasoning_text":
            yield Block(role, Kind.TEXT, "", str(value.get("text") or value.get("refusal") or ""))
        case "tool_use":
            yield _call(role, value.get("id"), value.get("name"), value.get("input"))
        case "function_call" | "custom_tool_call" | "tool_search_call":
            yield _call("assistant", value.get("call_id"), *_called(value, kind))
        case str() if kind in BUILT_IN:
            name, field = BUILT_IN[kind]
            yield _call("assistant", value.get("call_id"), name, value.get(field))
        case "tool_result":
            yield Block("tool", Kind.RESULT, str(value.get("tool_use_id") or ""), _flat(value.get("content")))
        case str() if kind.endswith("_call_output"):
            ident = value.get("call_id") or value.get("id") or ""
            yield Block("tool", Kind.RESULT, str(ident), _result(value.get("output")))
        case "tool_search_output":
            yield Block("tool", Kind.RESULT, str(value.get("call_id") or ""), sorted_json(value.get("tools")))
        case "agent_message":
            yield from _content(value.get("content"), "user")
        case "encrypted_content":
            # Of a message between agents; with models of our own it is what one of them wrote.
            yield Block(role, Kind.TEXT, "", str(value.get("encrypted_content") or ""))
        case "thinking":
            yield Block("assistant", Kind.REASONING, "", str(value.get("thinking") or ""))
        case "reasoning":
            yield Block("assistant", Kind.REASONING, "", reasoning_text(value))
        case _:
            kept = {key: item for key, item in value.items() if key not in ("cache_control", "id")}
            yield Block(role, Kind.OTHER, "", sorted_json(kept))


def _called(value: dict[str, Any], kind: str) -> tuple[str, Any]:
    """Name and arguments as chat has them."""
    if kind == "tool_search_call":
        return "tool_search", value.get("arguments")
    name = flat_name(value.get("namespace"), value.get("name"))
    return name, {PARAMETER: value.get("input")} if kind == "custom_tool_call" else value.get("arguments")


def _function(role: str, ident: Any, function: Any) -> Block:
    said = function if isinstance(function, dict) else {}
    return _call(role, ident, said.get("name"), said.get("arguments"))


def _call(role: str, ident: Any, name: Any, arguments: Any) -> Block:
    if isinstance(arguments, str):
        try:
            # Of a call without arguments some say "", others "{}".
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            return Block(role, Kind.CALL, str(ident or ""), f"{name}\n{arguments}")
    return Block(role, Kind.CALL, str(ident or ""), f"{name}\n{sorted_json(levelled(arguments))}")


def _flat(content: Any) -> str:
    """Text of a tool's result; parts that are no text stand as JSON."""
    return "".join(block.text for block in _content(content, "tool"))


def _result(output: Any) -> str:
    """The same for results that need not be made of parts."""
    return _flat(output) or (sorted_json(output) if output else "")


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _strings(item)
        case dict():
            for item in value.values():
                yield from _strings(item)
