"""A streamed chat/completions answer that the client gets as events of another wire."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.plain import Unreadable
from gyre.proxy.capture.reply import Choice, Reply, decode_reply
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.replies import said_of
from gyre.proxy.sse import data_of
from gyre.proxy.wires.translation import Ending, Translation, Writer, dumped

_UNREADABLE = b'{"message": "an event of the engine cannot be read", "code": "event_unreadable"}'
_TOO_LARGE = b'{"message": "an event of the engine is larger than may be held", "code": "event_too_large"}'


class TranslatedStream:
    """The chat stream is captured as ever; what it says is written anew."""

    passes_bytes = False

    def __init__(self, capture: StreamCapture, writer: Writer, call_id: str) -> None:
        self._capture = capture
        self._writer = writer
        self._names = _Names(call_id)
        self._begun = False
        self._ending = Ending(None)
        self._problem: bytes | None = None
        """Why what the engine says cannot be brought to the client."""

    @property
    def done(self) -> bool:
        return self._capture.done or self.failed is not None

    @property
    def given_up(self) -> bool:
        return False

    @property
    def failed(self) -> bytes | None:
        return self._problem or self._capture.failed

    @property
    def finished(self) -> bool:
        return self._capture.finished

    def forward(self, event: bytes) -> bytes:
        if self.done:
            return b""
        read = self._capture.read(event, self._names.give)
        if read is not None:
            return self._written(read[1])
        if event.startswith(b":"):
            # Comments keep a connection alive in every wire.
            return event
        if not self._capture.done and (data_of(event) or b"null").strip() not in (b"", b"null"):
            # On its own wire it would pass. Left out, the answer would have a hole that nobody sees.
            self._problem = _UNREADABLE
        return b""

    def give_up(self) -> None:
        self._problem = _TOO_LARGE
        self._capture.captured.flag("event_too_large")

    def finish(self, complete: bool) -> Captured:
        return self._capture.finish(complete)

    def end(self) -> bytes:
        if self.failed is not None:
            return self.broken(*said_of(self.failed))
        usage = usage_of(self._capture.captured.usage)
        return self._start() + self._writer.end(Ending(self._ending.reason, self._ending.matched, usage))

    def broken(self, status: int, message: str, code: str) -> bytes:
        return self._writer.failed(status, message, code)

    def _written(self, reply: Reply) -> bytes:
        out = [self._start()] if reply.choices else []
        for choice in reply.choices or ():
            if choice.index == 0:
                if choice.delta:
                    out.append(self._writer.delta(in_texts(choice.delta)))
                if choice.finish_reason is not None:
                    self._ending = Ending(choice.finish_reason, matched_stop(choice))
        return b"".join(out)

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        ids = self._capture.captured.prompt_ids
        return self._writer.start(None if ids is None else len(ids))


class _Names:
    """Ids for tool calls of an engine that gives none: client and record must mean the same by them."""

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id
        self._given: dict[int, str] = {}
        """By index; empty where the engine names it."""

    def give(self, message: dict[str, Any]) -> None:
        """Name what is new in a delta, or in a whole message."""
        calls = message.get("tool_calls")
        for part in calls if isinstance(calls, list) else ():
            if isinstance(part, dict):
                index = part.get("index")
                at = index if type(index) is int else len(self._given)
                if at not in self._given:
                    self._given[at] = "" if part.get("id") else f"call_{self._call_id}_{at}"
                if self._given[at] and not part.get("id"):
                    part["id"] = self._given[at]


def translated_answer(
    captured: Captured, body: bytes, translation: Translation, call_id: str, stream: bool
) -> bytes:
    """A plain chat answer in the wire's own form: as the events of a stream, or plain too.

    Raises:
        Unreadable: its message is no message.
    """
    writer = translation.writer()
    ids = captured.prompt_ids
    events = writer.start(None if ids is None else len(ids))
    for choice in captured.choices[:1]:
        message = orjson.loads(choice.message or b"{}")
        if not isinstance(message, dict):
            raise Unreadable("its message is no object")
        _Names(call_id).give(message)
        choice.message = dumped(message)
        events += writer.delta(in_texts(message))
    choices = decode_reply(body).choices or ()
    matched = matched_stop(choices[0]) if choices else None
    reason = captured.choices[0].finish_reason if captured.choices else None
    events += writer.end(Ending(reason, matched, usage_of(captured.usage)))
    return events if stream else dumped(writer.answer())


def in_texts(message: dict[str, Any]) -> dict[str, Any]:
    """A delta or message whose content is one text; some hosted APIs make a list of parts of it."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    said = [part for part in content if isinstance(part, dict)]
    text = "".join(part["text"] for part in said if isinstance(part.get("text"), str))
    thought = [_thought(part.get("thinking")) for part in said if part.get("type") == "thinking"]
    reasoning = {"reasoning": "".join(thought)} if any(thought) else {}
    return {**message, **reasoning, "content": text or None}


def _thought(said: Any) -> str:
    if isinstance(said, list):
        return "".join(str(part.get("text") or "") for part in said if isinstance(part, dict))
    return said if isinstance(said, str) else ""


def matched_stop(choice: Choice) -> str | None:
    """The stop string that ended an answer; an id is an end token of the model."""
    for said in (choice.stop_reason, choice.matched_stop):
        if isinstance(said, str):
            return said
    return None


def usage_of(usage: bytes | None) -> dict[str, Any] | None:
    """chat's usage block, where it is one."""
    try:
        fields = msgspec.json.decode(usage or b"null")
    except msgspec.DecodeError:
        return None
    return fields if isinstance(fields, dict) else None
