"""What a chat prompt is made from: messages, tools and template arguments, checked and in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gyre.proxy.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages as chat templates read them: content is text, arguments of calls are objects."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further template variables (`chat_template_kwargs`, `reasoning_effort`)."""

    def first(self, count: int) -> Conversation:
        """The same conversation after its first `count` messages."""
        return replace(self, messages=self.messages[:count])


def read_conversation(messages: object, tools: object = None, kwargs: object = None) -> Conversation:
    """Check the parts of a chat request (parsed JSON) and bring them into one form.

    RequestError 400 names the place, as `messages[3].content[1]`, and what is wrong with it.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message")
    return Conversation(
        messages=tuple(read_message(message, f"messages[{i}]") for i, message in enumerate(messages)),
        tools=tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(_list(tools, "tools"))),
        kwargs=_object({} if kwargs is None else kwargs, "chat_template_kwargs"),
    )


def read_message(message: object, place: str = "message") -> dict[str, Any]:
    """One message: role, content and, where given, name, reasoning_content, tool_calls, tool_call_id.

    `developer` becomes `system`; whatever else the client sent is dropped, as vLLM does.
    """
    given = _object(message, place)
    if given.get("function_call") is not None:
        raise RequestError(f"{place}.function_call is not supported; use tool_calls")
    role = _text(given.get("role"), f"{place}.role")
    read = {
        "role": "system" if role == "developer" else role,
        "content": _content(given.get("content"), f"{place}.content"),
    }
    for key in ("name", "tool_call_id"):
        if given.get(key) is not None:
            read[key] = _text(given[key], f"{place}.{key}")
    return read | _reasoning(given, place) | _calls(given.get("tool_calls"), f"{place}.tool_calls")


def _content(content: object, place: str) -> str:
    """Text; several text parts are joined by a line break, as vLLM and llama.cpp join them."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{place} must be text or a list of text parts")
    return "\n".join(_part(part, f"{place}[{i}]") for i, part in enumerate(content))


def _part(part: object, place: str) -> str:
    given = _object(part, place)
    kind = given.get("type")
    if kind == "refusal":
        return _text(given.get("refusal"), f"{place}.refusal")
    if kind != "text":
        raise RequestError(f"{place} is of type {kind!r}, which the model cannot read: it reads text only")
    return _text(given.get("text"), f"{place}.text")


def _reasoning(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Either name is read, because clients send back what some server once called it."""
    for key in ("reasoning", "reasoning_content"):
        if given.get(key):
            return {"reasoning_content": _text(given[key], f"{place}.{key}")}
    return {}


def _calls(calls: object, place: str) -> dict[str, Any]:
    read = [_call(call, f"{place}[{i}]") for i, call in enumerate(_list(calls, place))]
    return {"tool_calls": read} if read else {}


def _call(call: object, place: str) -> dict[str, Any]:
    given = _object(call, place)
    if given.get("type", "function") != "function":
        raise RequestError(f"{place} is of type {given['type']!r}; only function calls are supported")
    function = _object(given.get("function"), f"{place}.function")
    read: dict[str, Any] = {"type": "function"}
    if given.get("id") is not None:
        read["id"] = _text(given["id"], f"{place}.id")
    name = _text(function.get("name"), f"{place}.function.name")
    return read | {"function": {"name": name, "arguments": _arguments(function.get("arguments"), place)}}


def _arguments(arguments: object, place: str) -> object:
    """An object where the text is JSON of one (templates iterate over it), else the text itself."""
    if arguments is None or isinstance(arguments, dict):
        return arguments or {}
    text = _text(arguments, f"{place}.function.arguments")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return text


def _tool(tool: object, place: str) -> dict[str, Any]:
    given = _object(tool, place)
    if given.get("type") != "function":
        raise RequestError(f"{place} is of type {given.get('type')!r}; only functions are supported")
    function = _object(given.get("function"), f"{place}.function")
    _text(function.get("name"), f"{place}.function.name")
    return given


def _list(value: object, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(f"{place} must be a list")
    return value


def _object(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{place} must be an object")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{place} must be text")
    return value
