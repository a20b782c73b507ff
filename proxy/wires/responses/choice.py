"""Which tools the model may, must or must not call."""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.responses.refusal import malformed
from gyre.proxy.wires.responses.tools import Kind, Tools
from gyre.proxy.wires.translation import Json

_CALLED = frozenset(Kind)


def calling(body: Json, tools: Tools) -> Json:
    """chat's `tools`, `tool_choice` and `parallel_tool_calls`; none of them where no tool is left.

    Raises:
        RequestError: a tool is forced that cannot be called.
    """
    choice = body.get("tool_choice")
    definitions, said = tools.definitions, choice
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            definitions, said = _allowed(choice, tools)
        else:
            said = _one(choice, tools, "tool_choice")
    elif choice not in (None, "auto", "none", "required"):
        raise malformed("tool_choice", "must be `auto`, `none`, `required` or an object")
    if not definitions:
        if said == "required":
            raise malformed("tool_choice", "requires a tool, and none of `tools` can be called here")
        return {}
    fields: Json = {"tools": definitions}
    if said is not None:
        fields["tool_choice"] = said
    if isinstance(parallel := body.get("parallel_tool_calls"), bool):
        fields["parallel_tool_calls"] = parallel
    return fields


def _one(choice: Json, tools: Tools, place: str) -> Json:
    return {"type": "function", "function": {"name": _name(choice, tools, place)}}


def _allowed(choice: Json, tools: Tools) -> tuple[list[Json], str]:
    """Engines know no such choice; a model that is shown only those tools makes the same one."""
    allowed = choice.get("tools")
    if not isinstance(allowed, list):
        raise malformed("tool_choice.tools", "must be a list")
    mode = choice.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise malformed("tool_choice.mode", "must be `auto` or `required`")
    names = {
        _name(tool, tools, f"tool_choice.tools[{number}]")
        for number, tool in enumerate(allowed)
        if _kind(tool, f"tool_choice.tools[{number}]") in _CALLED
    }
    return tools.definitions_of(names), str(mode)


def _kind(choice: Any, place: str) -> str:
    if not isinstance(choice, dict) or not isinstance(kind := choice.get("type"), str):
        raise malformed(f"{place}.type", "must be a string")
    return kind


def _name(choice: Json, tools: Tools, place: str) -> str:
    kind = _kind(choice, place)
    if kind not in _CALLED:
        raise malformed(place, f"names a tool of type `{kind}`, which no engine can run")
    name = choice.get("name", kind)
    namespace = choice.get("namespace")
    if not isinstance(namespace, str | None):
        namespace = str(namespace)
    if not isinstance(name, str) or not (found := tools.find(kind, name, namespace)):
        raise malformed(place, f"names `{name}`, which is none of `tools`")
    return found
