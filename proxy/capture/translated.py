"""A streamed chat/completions answer that the client gets as events of another wire."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.reply import Choice, Reply, decode_reply
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.replies import said_of
from gyre.proxy.wires.translation import Ending, Translation, Writer

_TOO_LARGE = b'{"message": "an event of the engine is larger than may be held", "code": "event_too_large"}'


class TranslatedStream:
    """The chat stream is captured as ever; what it says is written anew."""

    passes_bytes = False

    def __init__(self, capture: StreamCapture, writer: Writer) -> None:
        self._capture = capture
        self._writer = writer
        self._begun = False
        self._ending = Ending(None)
        self._too_large = False

    @property
    def done(self) -> bool:
        return self._capture.done or self.failed is not None

    @property
    def given_up(self) -> bool:
        return False

    @property
    def failed(self) -> bytes | None:
        return _TOO_LARGE if self._too_large else self._capture.failed

    @property
    def finished(self) -> bool:
        return self._capture.finished

    def forward(self, event: bytes) -> bytes:
        read = self._capture.read(event)
        if read is None:
            # Comments keep a connection alive in every wire.
            return event if event.startswith(b":") else b""
        return self._written(read[1])

    def give_up(self) -> None:
        self._too_large = True
        self._capture.captured.flag("event_too_large")

    def finish(self, complete: bool) -> Captured:
        return self._capture.finish(complete)

    def end(self) -> bytes:
        if self.failed is not None:
            return self.broken(*said_of(self.failed))
        usage = self._capture.captured.usage
        return self._start() + self._writer.end(
            Ending(self._ending.reason, self._ending.matched, usage_of(usage))
        )

    def broken(self, status: int, message: str, code: str) -> bytes:
        return self._writer.failed(status, message, code)

    def _written(self, reply: Reply) -> bytes:
        out = [self._start()] if reply.choices else []
        for choice in reply.choices or ():
            if choice.index == 0:
                if choice.delta:
                    out.append(self._writer.delta(choice.delta))
                if choice.finish_reason is not None:
                    self._ending = Ending(choice.finish_reason, matched_stop(choice))
        return b"".join(out)

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        ids = self._capture.captured.prompt_ids
        return self._writer.start(None if ids is None else len(ids))


def translated_answer(captured: Captured, body: bytes, translation: Translation, stream: bool) -> bytes:
    """A plain chat answer in the wire's own form: as the events of a stream, or plain too."""
    writer = translation.writer()
    ids = captured.prompt_ids
    events = writer.start(None if ids is None else len(ids))
    for choice in captured.choices[:1]:
        events += writer.delta(orjson.loads(choice.message or b"{}"))
    choices = decode_reply(body).choices or ()
    matched = matched_stop(choices[0]) if choices else None
    reason = captured.choices[0].finish_reason if captured.choices else None
    events += writer.end(Ending(reason, matched, usage_of(captured.usage)))
    return events if stream else orjson.dumps(writer.answer())


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
