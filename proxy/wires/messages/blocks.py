"""Content blocks of an answer, one after the other, from deltas that may interleave.

Messages streams one block at a time; chat/completions may mix the arguments of parallel calls. What belongs
to a later block waits until the earlier one is over: text and thinking are as soon as something else comes,
a call when its arguments are a whole JSON object, and all of them at the end. Nothing is lost by waiting,
and nothing waits in the usual case of one call after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from gyre.proxy.wires.translation import Json

RAW = "_raw"
"""Holds arguments that are no JSON object, where the wire wants one."""
SIGNATURE = "gyre"
"""Of every thinking block. Clients keep it and send it back; nothing here checks it."""


class Kind(StrEnum):
    THINKING = "thinking"
    TEXT = "text"
    CALL = "tool_use"


@dataclass(slots=True)
class Block:
    kind: Kind
    ident: str = ""
    name: str = ""
    """Of calls."""
    parts: list[str] = field(default_factory=list)
    sent: int = 0
    """Parts that events have told of."""
    closed: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing more can come that means anything."""
        return self.kind != Kind.CALL or self.input is not None

    @property
    def input(self) -> Json | None:
        """Arguments of a call, if they are a whole JSON object."""
        # Long arguments come in many parts and are parsed only where they may be over.
        last = next((part for part in reversed(self.parts) if not part.isspace()), "")
        return _object("".join(self.parts)) if last.rstrip().endswith("}") else None

    def start(self) -> Json:
        match self.kind:
            case Kind.THINKING:
                return {"type": "thinking", "thinking": "", "signature": ""}
            case Kind.TEXT:
                return {"type": "text", "text": ""}
            case Kind.CALL:
                return {"type": "tool_use", "id": self.ident, "name": self.name, "input": {}}

    def delta(self, text: str) -> Json:
        match self.kind:
            case Kind.THINKING:
                return {"type": "thinking_delta", "thinking": text}
            case Kind.TEXT:
                return {"type": "text_delta", "text": text}
            case Kind.CALL:
                return {"type": "input_json_delta", "partial_json": text}

    def whole(self) -> Json:
        """The block in the plain form, whose `input` must be an object.

        Arguments that are none are kept as they are in `{"_raw": "..."}`; no arguments are none, `{}`.
        """
        text = "".join(self.parts)
        match self.kind:
            case Kind.THINKING:
                return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
            case Kind.TEXT:
                return {"type": "text", "text": text}
            case Kind.CALL:
                value = _object(text) if text.strip() else {}
                given = {RAW: text} if value is None else value
                return {"type": "tool_use", "id": self.ident, "name": self.name, "input": given}


class Blocks:
    """The blocks of one answer. `add` and `call` give the events that are due, `close` the rest."""

    def __init__(self, spare: str) -> None:
        self.all: list[Block] = []
        self._spare = spare
        """Ids of calls for which the engine gives none begin so."""
        self._calls: dict[int, Block] = {}
        self._at = 0
        """The block that is open, or will be next."""
        self._started = False

    @property
    def calls(self) -> list[Block]:
        return list(self._calls.values())

    def add(self, kind: Kind, text: str) -> list[Json]:
        if not text:
            return []
        if not self.all or self.all[-1].kind != kind:
            self.all.append(Block(kind))
        self.all[-1].parts.append(text)
        return self._advance()

    def call(self, key: int, ident: str, name: str, arguments: str) -> list[Json]:
        """A part of the call `key`; id and name count when they come first."""
        block = self._calls.get(key)
        if block is None:
            block = self._calls[key] = Block(Kind.CALL)
            self.all.append(block)
        if block.closed:
            # Its arguments were whole, so this is white space or nothing that anybody could read.
            return []
        block.ident = block.ident or ident
        block.name = block.name or name
        if arguments:
            block.parts.append(arguments)
        return self._advance()

    def close(self) -> list[Json]:
        return self._advance(last=True)

    def _advance(self, last: bool = False) -> list[Json]:
        events: list[Json] = []
        while self._at < len(self.all):
            block = self.all[self._at]
            if not (last or block.kind != Kind.CALL or block.name):
                break
            events += self._told(block)
            behind = self._at + 1 < len(self.all)
            if not (last or (behind and block.over)):
                break
            events += self._stopped(block)
        return events

    def _told(self, block: Block) -> list[Json]:
        """Start of the block if it has not been told, and what has come since."""
        events: list[Json] = []
        if not self._started:
            self._started = True
            block.ident = block.ident or f"{self._spare}_{self._at}"
            events.append({"type": "content_block_start", "index": self._at, "content_block": block.start()})
        text = "".join(block.parts[block.sent :])
        if block.kind == Kind.CALL and not block.sent and not text.strip():
            # Anthropic's SDK gives up on arguments that are only white space so far.
            return events
        if text:
            events.append({"type": "content_block_delta", "index": self._at, "delta": block.delta(text)})
            block.sent = len(block.parts)
        return events

    def _stopped(self, block: Block) -> list[Json]:
        events: list[Json] = []
        if block.kind == Kind.THINKING:
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            events.append({"type": "content_block_delta", "index": self._at, "delta": signed})
        events.append({"type": "content_block_stop", "index": self._at})
        block.closed = True
        self._at += 1
        self._started = False
        return events


def _object(text: str) -> Json | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
