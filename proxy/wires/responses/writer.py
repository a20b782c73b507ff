"""An answer of chat/completions on its way back, as events of Responses."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gyre.proxy.wires.responses.errors import code_in_stream
from gyre.proxy.wires.responses.events import Events
from gyre.proxy.wires.responses.output import CUT, DONE, RUNNING, Called, Item, Speech, Spoken
from gyre.proxy.wires.responses.tools import Tools
from gyre.proxy.wires.responses.usage import usage_of
from gyre.proxy.wires.translation import Dialect, Ending, Json

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesWriter:
    """See `gyre.proxy.wires.translation.Writer`.

    Text and reasoning end where something else begins. Calls end with the answer: their deltas may
    interleave, and a client that acts on a call then acts on one that is recorded.
    """

    def __init__(self, echo: Json, tools: Tools, dialect: Dialect, seal: bool) -> None:
        """`echo`: what the response repeats of its request. `seal`: reasoning goes out sealed as well."""
        self._echo = echo
        self._tools = tools
        self._dialect = dialect
        self._seal = seal
        self._created = int(time.time())
        self._events = Events()
        self._items: list[Item] = []
        self._spoken: Spoken | None = None
        self._calls: dict[int, _Call] = {}
        self._last: Item | None = None
        self._response: Json = self._snapshot(RUNNING)
        self._started = False

    def start(self, prompt_tokens: int | None) -> bytes:
        self._started = True
        created = self._events.write("response.created", response=self._response)
        return created + self._events.write("response.in_progress", response=self._response)

    def delta(self, delta: Json) -> bytes:
        out = []
        if thought := self._reasoning(delta):
            out.append(self._say(Speech.REASONING, thought))
        for field, speech in (("content", Speech.TEXT), ("refusal", Speech.REFUSAL)):
            if isinstance(text := delta.get(field), str) and text:
                out.append(self._say(speech, text))
        calls = delta.get("tool_calls")
        out += [
            self._call(part) for part in (calls if isinstance(calls, list) else ()) if isinstance(part, dict)
        ]
        return b"".join(out)

    def end(self, ending: Ending) -> bytes:
        if ending.reason == "abort":
            return self.failed(500, "the engine gave the answer up", "aborted")
        why = _INCOMPLETE.get(ending.reason or "")
        out = self._close(CUT if why else DONE)
        status = "incomplete" if why else "completed"
        details = {"reason": why} if why else None
        self._response = self._snapshot(status, incomplete_details=details, usage=usage_of(ending.usage))
        return out + self._events.write(f"response.{status}", response=self._response)

    def failed(self, status: int, message: str, code: str) -> bytes:
        out = b"" if self._started else self.start(None)
        error = {"code": code_in_stream(status, code), "message": message}
        self._response = self._snapshot("failed", error=error)
        # What was not said to its end is no output.
        whole = [item for item in self._response["output"] if item["status"] == DONE]
        self._response["output"] = whole
        return out + self._events.write("response.failed", response=self._response)

    def answer(self) -> Json:
        return self._response

    def _snapshot(self, status: str, **more: Any) -> Json:
        head: Json = {
            "id": f"resp_{self._dialect.call_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
        }
        tail: Json = {"output": [item.value() for item in self._items], "usage": None}
        return head | self._echo | tail | more

    def _reasoning(self, delta: Json) -> str:
        """Engines say it under one name or under both."""
        for field in (self._dialect.reasoning, "reasoning_content", "reasoning"):
            if isinstance(text := delta.get(field), str) and text:
                return text
        return ""

    def _say(self, speech: Speech, text: str) -> bytes:
        thought = speech is Speech.REASONING
        out = b""
        if self._spoken is None or self._spoken.thought is not thought:
            out = self._hush(DONE)
            at = len(self._items)
            self._spoken = Spoken(self._events, self._dialect.call_id, at, thought, self._seal)
            self._items.append(self._spoken)
            out += self._spoken.opened()
        self._last = self._spoken
        return out + self._spoken.add(speech, text)

    def _hush(self, status: str) -> bytes:
        spoken, self._spoken = self._spoken, None
        return spoken.close(status) if spoken else b""

    def _call(self, part: Json) -> bytes:
        index = part.get("index")
        at = index if type(index) is int else len(self._calls)
        call = self._calls.setdefault(at, _Call())
        call.read(part)
        out = b""
        if call.item is None:
            if not call.name:
                return b""
            out = self._begin(call)
        return out + self._continue(call)

    def _begin(self, call: _Call) -> bytes:
        out = self._hush(DONE)
        tool = self._tools.tool_of(call.name)
        call.item = Called(self._events, self._dialect.call_id, len(self._items), tool, call.ident)
        self._items.append(call.item)
        return out + call.item.opened()

    def _continue(self, call: _Call) -> bytes:
        assert call.item is not None
        self._last = call.item
        arguments, call.arguments = call.arguments, ""
        return call.item.add(arguments) if arguments else b""

    def _close(self, status: str) -> bytes:
        """End what is open, in its order; only the item that was being said can be the one cut off."""
        out = [self._begin(call) + self._continue(call) for call in self._calls.values() if call.item is None]
        open_items: list[Item] = [self._spoken] if self._spoken else []
        open_items += [call.item for call in self._calls.values() if call.item is not None]
        for item in sorted(open_items, key=self._items.index):
            out.append(item.close(status if item is self._last else DONE))
        self._spoken, self._calls = None, {}
        return b"".join(out)


class _Call:
    """A call whose parts arrive."""

    def __init__(self) -> None:
        self.item: Called | None = None
        self.ident = ""
        self.name = ""
        self.arguments = ""
        """Not told yet."""

    def read(self, part: Json) -> None:
        function = part.get("function")
        said = function if isinstance(function, dict) else {}
        if isinstance(ident := part.get("id"), str) and ident:
            self.ident = ident
        if isinstance(name := said.get("name"), str) and name:
            self.name = name
        arguments = said.get("arguments")
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if isinstance(arguments, str):
            self.arguments += arguments
