"""`tools` and `tool_choice` of a Messages request as those of chat/completions.

Tools with an `input_schema` are carried. Those that Anthropic defines by a type (`web_search_20250305`,
`bash_20250124`, ...) have no schema to show to another model, and some run on Anthropic's servers: they
are left out and flagged `tool_left_out:<type>`. A choice that forces such a tool is refused.
"""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.messages.lost import Lost, list_at, object_at, refusal, text_at
from gyre.proxy.wires.translation import Json

_TRANSPORT = {"cache_control", "eager_input_streaming"}
_CARRIED = {"type", "name", "description", "input_schema", "strict", "defer_loading"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def tool_fields(body: Json, lost: Lost) -> Json:
    """`tools`, `tool_choice` and `parallel_tool_calls`, as far as there is something to say.

    Raises:
        RequestError: a tool or the choice is malformed, or the choice forces a tool that is not there.
    """
    given = list_at(body.get("tools") or [], "tools")
    tools = [tool for number, item in enumerate(given) for tool in _tool(item, f"tools[{number}]", lost)]
    fields: Json = {"tools": tools} if tools else {}
    if body.get("tool_choice") is not None:
        fields |= _choice(object_at(body["tool_choice"], "tool_choice"), tools)
    return fields


def _tool(item: Any, place: str, lost: Lost) -> list[Json]:
    tool = object_at(item, place)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        lost.add(f"tool_left_out:{kind}")
        return []
    function: Json = {"name": text_at(tool.get("name"), f"{place}.name")}
    if tool.get("description") is not None:
        function["description"] = text_at(tool["description"], f"{place}.description")
    function["parameters"] = {**object_at(tool.get("input_schema"), f"{place}.input_schema")}
    function["parameters"].setdefault("type", "object")
    function |= {key: tool[key] for key in ("strict", "defer_loading") if tool.get(key) is not None}
    for key in sorted(tool.keys() - _CARRIED - _TRANSPORT):
        lost.add(f"tool_field_left_out:{key}")
    return [{"type": "function", "function": function}]


def _choice(choice: Json, tools: list[Json]) -> Json:
    kind = text_at(choice.get("type"), "tool_choice.type")
    fields: Json = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if kind == "tool":
        name = text_at(choice.get("name"), "tool_choice.name")
        if name not in [tool["function"]["name"] for tool in tools]:
            raise refusal("tool_choice", f"forces `{name}`, which is none of the tools that can be carried")
        return {"tool_choice": {"type": "function", "function": {"name": name}}, **fields}
    if kind not in _CHOICES:
        raise refusal("tool_choice.type", "must be `auto`, `any`, `tool` or `none`")
    if not tools:
        if kind == "any":
            raise refusal("tool_choice", "forces a tool, but there is none that can be carried")
        return {}
    return {"tool_choice": _CHOICES[kind], **fields}
