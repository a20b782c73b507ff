"""A native stream of Responses, read as it goes past untouched."""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.translation import Json

_TEXTS = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
}
"""Where a delta goes: list of parts, type of the part, its field."""
_FIELDS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_IN_REQUEST = frozenset(("output", "usage", "instructions", "tools"))


class ResponsesAssembly:
    """See `gyre.proxy.wires.translation.Assembly`."""

    def __init__(self) -> None:
        self.done = False
        self.failed: str | None = None
        self.finish_reason: str | None = None
        """`completed`, `failed`, or why it is incomplete."""
        self.usage: Json | None = None
        self._response: Json = {}
        self._output: list[Any] | None = None
        """As the terminal event had it."""
        self._items: dict[int, _Item] = {}

    def add(self, event: Json) -> None:
        kind = event.get("type")
        if not isinstance(kind, str):
            return
        response = event.get("response")
        if isinstance(response, dict):
            self._response |= response
        if kind in _ENDS:
            self.done = True
            self._end(response if isinstance(response, dict) else {}, kind.removeprefix("response."))
        elif kind == "error":
            self.failed = _message(event.get("error")) or _message(event) or "the engine sent an error"
        elif kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(item := event.get("item"), dict):
                self._items[self._at(event)] = _Item(item)
        elif kind in _TEXTS or kind in _FIELDS:
            self._grow(event, kind)

    def end(self, response: Json) -> None:
        """A plain answer: all at once."""
        self._response = response
        self.done = True
        self._end(response, str(response.get("status") or "completed"))

    def message(self) -> Json:
        if self._output:
            return {"output": self._output}
        return {"output": [self._items[at].value() for at in sorted(self._items)]}

    def meta(self) -> Json:
        return {key: value for key, value in self._response.items() if key not in _IN_REQUEST}

    def _end(self, response: Json, status: str) -> None:
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        self.finish_reason = reason if isinstance(reason, str) else status
        if status == "failed":
            self.failed = _message(response.get("error")) or "the engine failed"
        if isinstance(usage := response.get("usage"), dict):
            self.usage = usage
        if isinstance(output := response.get("output"), list):
            self._output = output

    def _at(self, event: Json) -> int:
        index = event.get("output_index")
        return index if type(index) is int else len(self._items)

    def _grow(self, event: Json, kind: str) -> None:
        delta, item = event.get("delta"), self._items.get(self._at(event))
        if item is None or not isinstance(delta, str):
            return
        if field := _FIELDS.get(kind):
            item.grow((field, "", "", 0), delta)
            return
        index = event.get("summary_index" if "summary" in kind else "content_index")
        item.grow((*_TEXTS[kind], index if type(index) is int else 0), delta)


class _Item:
    """One item as it began, and what was added since; or whole."""

    def __init__(self, item: Json) -> None:
        self._item = item
        self._grown: dict[tuple[str, str, str, int], list[str]] = {}

    def grow(self, where: tuple[str, str, str, int], text: str) -> None:
        self._grown.setdefault(where, []).append(text)

    def value(self) -> Json:
        item = dict(self._item)
        parts: dict[str, dict[int, Json]] = {}
        for (name, kind, field, index), said in self._grown.items():
            if kind:
                parts.setdefault(name, {})[index] = {"type": kind, field: "".join(said)}
            else:
                item[name] = "".join(said)
        for name, listed in parts.items():
            item[name] = [listed[index] for index in sorted(listed)]
        return item


def read_plain(answer: Json) -> ResponsesAssembly:
    """A plain answer, read to its end."""
    assembly = ResponsesAssembly()
    assembly.end(answer)
    return assembly


def _message(error: Any) -> str | None:
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) and message else None
