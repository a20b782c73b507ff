"""Items of an answer while they are said: what was said so far, and the events that tell it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from gyre.proxy.wires.responses.arguments import InputReader, value_of
from gyre.proxy.wires.responses.events import Events
from gyre.proxy.wires.responses.names import item_id
from gyre.proxy.wires.responses.sealed import sealed
from gyre.proxy.wires.responses.tools import Kind, Tool
from gyre.proxy.wires.translation import Json

DONE, CUT, RUNNING = "completed", "incomplete", "in_progress"


class Item(Protocol):
    """One item; its place in the output is fixed when it is made."""

    def close(self, status: str) -> bytes:
        """The events that end it."""

    def value(self) -> Json:
        """The item as far as it came."""


class Speech(Enum):
    """What parts of text are: name of the events, type of the part, field with its text."""

    TEXT = ("output_text", "output_text", "text")
    REFUSAL = ("refusal", "refusal", "refusal")
    REASONING = ("reasoning_text", "reasoning_text", "text")

    @property
    def event(self) -> str:
        return f"response.{self.value[0]}"

    def part(self, text: str) -> Json:
        _, kind, field = self.value
        part: Json = {"type": kind, field: text}
        return part | {"annotations": [], "logprobs": []} if self is Speech.TEXT else part

    def done(self, text: str) -> Json:
        said: Json = {self.value[2]: text}
        return said | {"logprobs": []} if self is Speech.TEXT else said


class Spoken:
    """A message, or reasoning (`thought`)."""

    def __init__(self, events: Events, call_id: str, index: int, thought: bool, seal: bool) -> None:
        self.thought = thought
        self._events = events
        self._seal = seal
        self._index = index
        self._id = item_id("rs" if thought else "msg", call_id, index)
        self._status = RUNNING
        self._parts: list[tuple[Speech, list[str]]] = []

    def opened(self) -> bytes:
        return self._events.write("response.output_item.added", output_index=self._index, item=self.value())

    def add(self, speech: Speech, text: str) -> bytes:
        out = b""
        if not self._parts or self._parts[-1][0] is not speech:
            out = self._close_part()
            self._parts.append((speech, []))
            out += self._part_event("added", speech.part(""))
        self._parts[-1][1].append(text)
        more: Json = {"logprobs": []} if speech is Speech.TEXT else {}
        return out + self._events.write(f"{speech.event}.delta", **self._place(), delta=text, **more)

    def close(self, status: str) -> bytes:
        out = self._close_part()
        self._status = status
        return out + self._events.write(
            "response.output_item.done", output_index=self._index, item=self.value()
        )

    def value(self) -> Json:
        parts = [speech.part("".join(said)) for speech, said in self._parts]
        if not self.thought:
            kind: Json = {"id": self._id, "type": "message", "role": "assistant", "status": self._status}
            return kind | {"content": parts}
        item: Json = {"id": self._id, "type": "reasoning", "summary": [], "content": parts}
        if self._seal and self._status != RUNNING:
            item["encrypted_content"] = sealed("".join(part["text"] for part in parts))
        return item | {"status": self._status}

    def _close_part(self) -> bytes:
        if not self._parts:
            return b""
        speech, said = self._parts[-1]
        text = "".join(said)
        done = self._events.write(f"{speech.event}.done", **self._place(), **speech.done(text))
        return done + self._part_event("done", speech.part(text))

    def _part_event(self, what: str, part: Json) -> bytes:
        return self._events.write(f"response.content_part.{what}", **self._place(), part=part)

    def _place(self) -> Json:
        return {
            "item_id": self._id,
            "output_index": self._index,
            "content_index": len(self._parts) - 1,
        }


_PREFIX = {Kind.FUNCTION: "fc", Kind.CUSTOM: "ctc", Kind.SEARCH: "tsc"}
_SAYS = {
    Kind.FUNCTION: ("response.function_call_arguments", "arguments"),
    Kind.CUSTOM: ("response.custom_tool_call_input", "input"),
}


class Called:
    """A tool's call."""

    def __init__(self, events: Events, call_id: str, index: int, tool: Tool, ident: str) -> None:
        self._events = events
        self._index = index
        self._tool = tool
        self._id = item_id(_PREFIX[tool.kind], call_id, index)
        self._ident = ident or f"call_{call_id}_{index}"
        self._status = RUNNING
        self._said: list[str] = []
        self._reader = InputReader() if tool.kind == Kind.CUSTOM else None

    def opened(self) -> bytes:
        return self._events.write("response.output_item.added", output_index=self._index, item=self.value())

    def add(self, arguments: str) -> bytes:
        return self._say(self._reader.feed(arguments) if self._reader else arguments)

    def close(self, status: str) -> bytes:
        out = self._say(self._reader.finish()) if self._reader else b""
        self._status = status
        if self._tool.kind in _SAYS:
            event, field = _SAYS[self._tool.kind]
            named = {"name": self._tool.name} if self._tool.kind == Kind.FUNCTION else {}
            said = {field: "".join(self._said), **named}
            out += self._events.write(f"{event}.done", item_id=self._id, output_index=self._index, **said)
        return out + self._events.write(
            "response.output_item.done", output_index=self._index, item=self.value()
        )

    def value(self) -> Json:
        said = "".join(self._said)
        item: Json = {"id": self._id, "call_id": self._ident, "status": self._status}
        if self._tool.kind == Kind.SEARCH:
            arguments = value_of(said) if self._status != RUNNING else {}
            return item | {"type": "tool_search_call", "execution": "client", "arguments": arguments}
        custom = self._tool.kind == Kind.CUSTOM
        item |= {"type": "custom_tool_call" if custom else "function_call", "name": self._tool.name}
        item["input" if custom else "arguments"] = said
        return item | ({"namespace": self._tool.namespace} if self._tool.namespace else {})

    def _say(self, text: str) -> bytes:
        if not text:
            return b""
        self._said.append(text)
        if self._tool.kind not in _SAYS:
            return b""
        return self._events.write(
            f"{_SAYS[self._tool.kind][0]}.delta", item_id=self._id, output_index=self._index, delta=text
        )
