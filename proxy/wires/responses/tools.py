"""The tools of a request, under the names by which the engine knows them.

chat/completions has functions and nothing else. Functions of a namespace are called
`<namespace>__<name>`; a custom (freeform) tool is a function of one text; `tool_search` that the
client runs is a function too. Tools that OpenAI's servers run are left out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from gyre.proxy.wires.responses.arguments import PARAMETER
from gyre.proxy.wires.responses.names import flat_name
from gyre.proxy.wires.responses.refusal import malformed, named_at, note
from gyre.proxy.wires.translation import Json

SEARCH = "tool_search"


class Kind(StrEnum):
    FUNCTION = "function"
    CUSTOM = "custom"
    SEARCH = "tool_search"


class Tool(NamedTuple):
    """A tool as the client knows it."""

    kind: Kind
    name: str
    namespace: str | None = None


class Tools:
    """Filled by `declare`, from the request's `tools` and from items that bring more."""

    def __init__(self, lost: list[str]) -> None:
        self._lost = lost
        self._names: dict[Tool, str] = {}
        self._tools: dict[str, Tool] = {}
        self._definitions: dict[str, Json] = {}

    @property
    def definitions(self) -> list[Json]:
        """chat's `tools`, in the order in which they were declared."""
        return list(self._definitions.values())

    def definitions_of(self, names: set[str]) -> list[Json]:
        return [definition for name, definition in self._definitions.items() if name in names]

    def declare(self, tools: Any, place: str) -> list[str]:
        """Take a list of tools; returns their names in chat.

        Raises:
            RequestError: it is none, or a tool has no name.
        """
        if not isinstance(tools, list):
            raise malformed(place, "must be a list")
        names: list[str] = []
        for number, tool in enumerate(tools):
            names += self._declare(tool, f"{place}[{number}]")
        return names

    def name_of(self, tool: Tool) -> str:
        """Its name in chat, also when it is not declared any more."""
        return self._names.get(tool) or flat_name(tool.namespace, tool.name)

    def tool_of(self, name: str) -> Tool:
        """The tool that the model called; what it made up is a function of that name."""
        return self._tools.get(name) or Tool(Kind.FUNCTION, name)

    def find(self, kind: str, name: str, namespace: Any) -> str | None:
        """The chat name of a declared tool; without its namespace where that leaves no doubt."""
        found = {
            tool.namespace: chat
            for chat, tool in self._tools.items()
            if (tool.kind, tool.name) == (kind, name)
        }
        if namespace is not None or None in found:
            return found.get(namespace)
        return next(iter(found.values())) if len(found) == 1 else None

    def _declare(self, tool: Any, place: str) -> list[str]:
        if not isinstance(tool, dict):
            raise malformed(place, "must be an object")
        match tool.get("type"):
            case "function" | "custom":
                return [self._add(tool, place, None)]
            case "namespace":
                return self._add_namespace(tool, place)
            case "tool_search" if tool.get("execution") == "client":
                return [self._put(Tool(Kind.SEARCH, SEARCH), tool, _parameters(tool, place))]
            case str(kind):
                note(self._lost, f"tool_left_out:{kind}")
                return []
        raise malformed(f"{place}.type", "must be a string")

    def _add_namespace(self, tool: Json, place: str) -> list[str]:
        namespace = named_at(tool, "name", place)
        nested = tool.get("tools")
        if not isinstance(nested, list):
            raise malformed(f"{place}.tools", "must be a list")
        names: list[str] = []
        for number, inner in enumerate(nested):
            where = f"{place}.tools[{number}]"
            if not isinstance(inner, dict):
                raise malformed(where, "must be an object")
            if inner.get("type") not in ("function", "custom"):
                note(self._lost, f"tool_left_out:{inner.get('type')}")
                continue
            # What the namespace says of all its tools is said once, by the first.
            said = tool.get("description") if not names else None
            names.append(self._add(_described(inner, said), where, namespace))
        return names

    def _add(self, tool: Json, place: str, namespace: str | None) -> str:
        name = named_at(tool, "name", place)
        if tool["type"] == "function":
            return self._put(Tool(Kind.FUNCTION, name, namespace), tool, _parameters(tool, place))
        return self._put(Tool(Kind.CUSTOM, name, namespace), tool, self._text_parameter(tool))

    def _put(self, tool: Tool, given: Json, parameters: Json) -> str:
        name = self._names.get(tool) or self._free(flat_name(tool.namespace, tool.name))
        self._names[tool], self._tools[name] = name, tool
        function: Json = {"name": name}
        if isinstance(said := given.get("description"), str) and said:
            function["description"] = said
        function["parameters"] = parameters
        if given.get("strict") is True:
            function["strict"] = True
        self._definitions[name] = {"type": "function", "function": function}
        return name

    def _free(self, name: str) -> str:
        wanted, number = name, 2
        while name in self._tools:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def _text_parameter(self, tool: Json) -> Json:
        """The one parameter; a grammar is told to the model, but no engine holds it to that here."""
        text: Json = {"type": "string"}
        form = tool.get("format")
        if isinstance(form, dict) and isinstance(definition := form.get("definition"), str):
            text["description"] = f"Text in this {form.get('syntax')} grammar:\n{definition}"
            note(self._lost, f"grammar_not_enforced:{tool.get('name')}")
        parameters = {"type": "object", "properties": {PARAMETER: text}, "required": [PARAMETER]}
        return parameters | {"additionalProperties": False}


def _parameters(tool: Json, place: str) -> Json:
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise malformed(f"{place}.parameters", "must be an object")
    return parameters or {"type": "object", "properties": {}}


def _described(tool: Json, said: Any) -> Json:
    if not isinstance(said, str) or not said:
        return tool
    own = tool.get("description")
    return {**tool, "description": f"{said}\n\n{own}" if own else said}
