"""What a wire must do to be translated to chat/completions and back, or only be read as it passes.

Messages and Responses implement it (`gyre.proxy.wires.messages`, `.responses`). No I/O here: values
and bytes in, values and bytes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

Json = dict[str, Any]
dumped = msgspec.json.encode
"""JSON as deep as it can be read; orjson reads deeper than it writes, and models do repeat `{"a":`."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the engine at hand writes chat/completions, and what the proxy remembers of this execution."""

    call_id: str
    """Ids of the answer and its items are made from it, so that they name the recorded row."""
    reasoning: str = "reasoning_content"
    """Field of an assistant message that holds its reasoning; vLLM says `reasoning`."""
    sampled: Callable[[str], Sequence[str]] = lambda ident: ()
    """Arguments of the tool calls with that id as the model wrote them, the latest first: some engines use an
    id again and again."""
    fold_system: bool = False
    """Its template refuses system messages in mid-conversation (`gyre.proxy.wires.fold`)."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer of the engine ended."""

    reason: str | None
    """chat's `finish_reason`."""
    matched: str | None = None
    """The stop string that ended it, where the engine says so."""
    usage: Json | None = None
    """chat's `usage`."""


class Writer(Protocol):
    """One answer on its way back, as events of the wire. Every method gives whole SSE events."""

    def start(self, prompt_tokens: int | None) -> bytes:
        """What comes before the first delta; the count is there where the engine already said it."""

    def delta(self, delta: Json) -> bytes:
        """One `choices[0].delta` of chat/completions; a whole `message` is a delta too."""

    def end(self, ending: Ending) -> bytes:
        """Everything up to and with the terminal event; called once, when the row is recorded."""

    def failed(self, status: int, message: str, code: str) -> bytes:
        """The error event with which the stream ends instead."""

    def answer(self) -> Json:
        """After `end`: the same answer in the wire's plain form."""


class Translation(Protocol):
    """One call, translated. Made by `translate(body, dialect)` of each wire."""

    chat: Json
    """The request as chat/completions, `stream` as asked; with it `stream_options.include_usage`."""
    lost: list[str]
    """Flags for what could not be carried, like `tool_left_out:web_search`."""

    def writer(self) -> Writer: ...


class Assembly(Protocol):
    """Reads a native stream of the wire that goes past untouched."""

    done: bool
    """The terminal event was read."""
    failed: str | None
    """What the engine said went wrong."""
    finish_reason: str | None
    usage: Json | None

    def add(self, event: Json) -> None:
        """The data of one event. Unknown events are nothing; odd types never raise."""

    def message(self) -> Json:
        """The answer as far as it came: `role` and `content` of Messages, `output` of Responses."""

    def meta(self) -> Json:
        """The answer's other fields."""
