"""chat's messages, put together from items.

What one answer of the model was, is one assistant message again: reasoning, then text, then calls.
Items in another order, or of different answers, become several.
"""

from __future__ import annotations

from enum import IntEnum

from gyre.proxy.wires.translation import Json


class Stage(IntEnum):
    """Parts of an assistant message, in the order in which a template writes them."""

    REASONING = 0
    TEXT = 1
    CALLS = 2


class _Answer:
    def __init__(self, source: str | None) -> None:
        self.source = source
        """The call whose answer it was, where that is known."""
        self.stage = Stage.REASONING
        self.reasoning: list[str] = []
        self.text: str | None = None
        self.calls: list[Json] = []

    def takes(self, stage: Stage, source: str | None) -> bool:
        if source and self.source and source != self.source:
            return False
        # A second text is a second message: the client kept one of an answer that was cut.
        return stage > self.stage or (stage == self.stage and self.text is None) or stage == Stage.CALLS

    def message(self, reasoning_field: str) -> Json:
        message: Json = {"role": "assistant"}
        if reasoning := "\n\n".join(self.reasoning):
            message[reasoning_field] = reasoning
        message["content"] = self.text or (None if self.calls else "")
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class History:
    """Add parts in order, then take `messages`."""

    def __init__(self, reasoning_field: str) -> None:
        self._field = reasoning_field
        self._messages: list[Json] = []
        self._answer: _Answer | None = None

    def say(self, role: str, content: str | list[Json]) -> None:
        """A message that is no answer."""
        self._close()
        self._messages.append({"role": role, "content": content})

    def result(self, call_id: str, content: str | list[Json]) -> None:
        self._close()
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def think(self, text: str, source: str | None) -> None:
        self._part(Stage.REASONING, source).reasoning.append(text)

    def answer(self, text: str, source: str | None) -> None:
        self._part(Stage.TEXT, source).text = text

    def call(self, call_id: str, name: str, arguments: str, source: str | None) -> None:
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._part(Stage.CALLS, source).calls.append(call)

    def messages(self) -> list[Json]:
        """All of them. Instructions at the start are one: many templates take only one, and only there."""
        self._close()
        leading: list[str] = []
        for message in self._messages:
            if message["role"] != "system" or not isinstance(message["content"], str):
                break
            leading.append(message["content"])
        if len(leading) < 2:
            return self._messages
        return [{"role": "system", "content": "\n\n".join(leading)}, *self._messages[len(leading) :]]

    def _part(self, stage: Stage, source: str | None) -> _Answer:
        """The assistant message that a part goes into."""
        if self._answer is None or not self._answer.takes(stage, source):
            self._close()
            self._answer = _Answer(source)
        self._answer.stage = stage
        self._answer.source = self._answer.source or source
        return self._answer

    def _close(self) -> None:
        if self._answer is not None:
            self._messages.append(self._answer.message(self._field))
            self._answer = None
