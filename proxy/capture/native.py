"""A Messages or Responses answer of an engine that speaks the wire itself: read as it passes, without ids."""

from __future__ import annotations

import orjson

from gyre.proxy.calls import Wire
from gyre.proxy.capture.captured import Captured, ChoiceCapture
from gyre.proxy.capture.plain import Unreadable
from gyre.proxy.replies import error_event
from gyre.proxy.sse import data_of
from gyre.proxy.wires.known import assembly_of, read_plain
from gyre.proxy.wires.translation import Assembly, dumped


class NativeStream:
    """The client gets the engine's own events; what they say is kept."""

    passes_bytes = True

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._read: Assembly = assembly_of(wire)
        self._end = b""
        self._flags: list[str] = []
        self.given_up = False

    @property
    def done(self) -> bool:
        return self._read.done

    @property
    def failed(self) -> bytes | None:
        return None if self._read.failed is None else self._read.failed.encode()

    @property
    def finished(self) -> bool:
        return self._read.done

    def forward(self, event: bytes) -> bytes:
        if self._read.done:
            # What follows the terminal event waits with it, in its order.
            self._end += event
            return b""
        data = data_of(event)
        if data is None or data == b"[DONE]":
            return event
        try:
            said = orjson.loads(data)
        except orjson.JSONDecodeError:
            said = None
        if not isinstance(said, dict):
            self._flags.append("event_unreadable")
            return event
        self._read.add(said)
        if self._read.done:
            self._end = event
            return b""
        return event

    def give_up(self) -> None:
        self.given_up = True
        self._flags.append("event_too_large")

    def finish(self, complete: bool) -> Captured:
        captured = captured_of(self._read)
        for flag in self._flags:
            captured.flag(flag)
        captured.complete = complete
        if not complete:
            captured.flag("cut")
        return captured

    def end(self) -> bytes:
        return self._end

    def broken(self, status: int, message: str, code: str) -> bytes:
        return error_event(self._wire, status, message, code)


def capture_native(wire: Wire, body: bytes) -> Captured:
    """A plain answer of status 200.

    Raises:
        Unreadable: not a JSON object.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unreadable(str(error)) from error
    if not isinstance(answer, dict):
        raise Unreadable("it is no JSON object")
    captured = captured_of(read_plain(wire, answer))
    captured.complete = True
    return captured


def captured_of(read: Assembly) -> Captured:
    """What was read, as a row wants it; the flag says when it says nothing at all."""
    message = read.message()
    said = message.get("content") or message.get("output")
    choice = ChoiceCapture(0, dumped(message), read.finish_reason, empty=not said)
    usage = None if read.usage is None else dumped(read.usage)
    captured = Captured([choice], usage=usage, meta=dumped(read.meta()))
    if choice.empty:
        captured.flag("no_content")
    return captured
