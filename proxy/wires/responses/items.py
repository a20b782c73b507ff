"""Items of `input` as chat's messages."""

from __future__ import annotations

import json
from typing import Any

from gyre.proxy.wires.responses.arguments import as_sampled, of_custom, of_value
from gyre.proxy.wires.responses.content import content_of, text_of
from gyre.proxy.wires.responses.history import History
from gyre.proxy.wires.responses.names import BUILT_IN, answer_of
from gyre.proxy.wires.responses.refusal import malformed, named_at, note, text_at
from gyre.proxy.wires.responses.sealed import opened, reasoning_text
from gyre.proxy.wires.responses.tools import SEARCH, Kind, Tool, Tools
from gyre.proxy.wires.translation import Dialect, Json

_ROLES = {"user": "user", "system": "system", "developer": "system"}
"""Open models' templates know no developer."""
_OUTPUTS = frozenset(
    (
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
    )
)
_HOSTED = frozenset(
    (
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "computer_call_output",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
    )
)
"""What tools of OpenAI's servers left behind; no engine here has ever seen it."""
_ELSEWHERE = {
    "item_reference": "refers to an item that a server keeps; the proxy keeps none, send it (`store: false`)",
    "compaction": "is a history that only its server can read; send the items themselves",
    "compaction_summary": "is a history that only its server can read; send the items themselves",
    "context_compaction": "is a history that only its server can read; send the items themselves",
    "compaction_trigger": "asks the server to compact, which no engine does; ask for a summary instead",
}
_FOREIGN = "gAAAA"
"""How what OpenAI encrypts begins."""


class Reader:
    """Reads items into a history. Items that bring tools put them into `tools`."""

    def __init__(self, tools: Tools, dialect: Dialect, lost: list[str]) -> None:
        self._tools = tools
        self._dialect = dialect
        self._lost = lost
        self._history = History(dialect.reasoning)

    def messages(self, instructions: str | None, given: Any) -> list[Json]:
        """All messages of a request.

        Raises:
            RequestError: an item is malformed or cannot be carried; names its place.
        """
        if instructions:
            self._history.say("system", instructions)
        if isinstance(given, str):
            self._history.say("user", given)
        elif isinstance(given, list):
            for number, item in enumerate(given):
                self._read(item, f"input[{number}]")
        else:
            raise malformed("input", "must be a string or a list of items")
        if not (messages := self._history.messages()):
            raise malformed("input", "has nothing to answer to")
        return messages

    def _read(self, item: Any, place: str) -> None:
        if not isinstance(item, dict):
            raise malformed(place, "must be an object")
        match kind := item.get("type") or _kind_of_short(item):
            case "message":
                self._message(item, place)
            case "reasoning":
                self._reasoning(item)
            case "function_call" | "custom_tool_call" | "tool_search_call":
                self._call(item, kind, place)
            case str() if kind in BUILT_IN:
                name, field = BUILT_IN[kind]
                self._add_call(item, name, self._arguments(item, item.get(field), place), place)
            case str() if kind in _OUTPUTS:
                self._history.result(_call_id(item, place), self._output(item, place))
            case "tool_search_output":
                self._found(item, place)
            case "additional_tools":
                self._tools.declare(item.get("tools"), f"{place}.tools")
            case "agent_message":
                self._history.say("user", self._from_agent(item, place))
            case str() if kind in _HOSTED:
                note(self._lost, f"item_left_out:{kind}")
            case str() if kind in _ELSEWHERE:
                raise malformed(place, _ELSEWHERE[kind])
            case _:
                raise malformed(place, f"is of type `{kind}`, which cannot be carried")

    def _message(self, item: Json, place: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            if phase := item.get("phase"):
                note(self._lost, f"phase_left_out:{phase}")
            self._history.answer(text_of(content, f"{place}.content", self._lost), answer_of(item.get("id")))
        elif isinstance(role, str) and role in _ROLES:
            self._history.say(_ROLES[role], content_of(content, f"{place}.content", self._lost))
        else:
            raise malformed(f"{place}.role", "must be `user`, `assistant`, `system` or `developer`")

    def _reasoning(self, item: Json) -> None:
        text = reasoning_text(item)
        if item.get("encrypted_content") and opened(item["encrypted_content"]) is None:
            note(self._lost, "reasoning_unreadable")
        if text:
            self._history.think(text, answer_of(item.get("id")))

    def _call(self, item: Json, kind: str, place: str) -> None:
        if kind == "tool_search_call":
            if item.get("execution") != "client":
                note(self._lost, f"item_left_out:{kind}")
                return
            arguments = self._arguments(item, item.get("arguments"), place)
            self._add_call(item, self._tools.name_of(Tool(Kind.SEARCH, SEARCH)), arguments, place)
            return
        call_id, name = _call_id(item, place), named_at(item, "name", place)
        namespace = item.get("namespace") or None
        if not isinstance(namespace, str | None):
            raise malformed(f"{place}.namespace", "must be a string")
        if kind == "custom_tool_call":
            tool = Tool(Kind.CUSTOM, name, namespace)
            arguments = of_custom(self._dialect, call_id, text_at(item, "input", place))
        else:
            tool = Tool(Kind.FUNCTION, name, namespace)
            arguments = as_sampled(self._dialect, call_id, text_at(item, "arguments", place))
        self._add_call(item, self._tools.name_of(tool), arguments, place)

    def _arguments(self, item: Json, value: Any, place: str) -> str:
        return of_value(self._dialect, _call_id(item, place), value)

    def _add_call(self, item: Json, name: str, arguments: str, place: str) -> None:
        self._history.call(_call_id(item, place), name, arguments, answer_of(item.get("id")))

    def _output(self, item: Json, place: str) -> str | list[Json]:
        output = item.get("output")
        if item["type"] == "apply_patch_call_output" and not output:
            return str(item.get("status"))
        if item["type"] == "shell_call_output":
            # Streams and exit codes of several commands, which chat has no words for.
            return json.dumps(output, ensure_ascii=False)
        return content_of(output, f"{place}.output", self._lost)

    def _found(self, item: Json, place: str) -> None:
        """Tools that a search found can be called from here on; the engine must know them from the start."""
        names = self._tools.declare(item.get("tools"), f"{place}.tools")
        if item.get("execution") == "client":
            self._history.result(_call_id(item, place), json.dumps({"tools": names}, ensure_ascii=False))
        else:
            note(self._lost, f"item_left_out:{item['type']}")

    def _from_agent(self, item: Json, place: str) -> str:
        """A message between agents. Its secret part is what our model wrote: no engine encrypts."""
        parts = item.get("content")
        if not isinstance(parts, list):
            raise malformed(f"{place}.content", "must be a list")
        said: list[str] = []
        for number, part in enumerate(parts):
            if not isinstance(part, dict):
                raise malformed(f"{place}.content[{number}]", "must be an object")
            field = "encrypted_content" if part.get("type") == "encrypted_content" else "text"
            text = text_at(part, field, f"{place}.content[{number}]")
            if field == "encrypted_content" and text.startswith(_FOREIGN):
                note(self._lost, "agent_message_unreadable")
            else:
                said.append(text)
        return "".join(said)


def _kind_of_short(item: Json) -> str | None:
    """Two forms may leave their type out."""
    if "role" in item:
        return "message"
    return "item_reference" if item.keys() == {"id"} else None


def _call_id(item: Json, place: str) -> str:
    """The id that joins a call and its output."""
    if item.get("type") == "local_shell_call_output" and "call_id" not in item:
        return named_at(item, "id", place)
    return named_at(item, "call_id", place)
