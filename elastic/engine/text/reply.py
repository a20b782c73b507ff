"""A reply's text taken apart while it streams: reasoning, content, tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """What the parser looks for."""

    reasoning: bool = False
    """`<think>…</think>` at the start is reasoning."""
    tools: bool = False
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` is a call (the form of Hermes and Qwen)."""
    thinking: bool = False
    """The prompt already opened `<think>`."""
    max_calls: int | None = None
    """1 for `parallel_tool_calls: false`: later calls are content."""


def reply_form(
    template: str, prompt_text: str, *, tools: bool, parallel_tool_calls: bool = True
) -> ReplyForm:
    """The form of replies to a prompt, by what the template's text mentions.

    `tools`: tools were given and `tool_choice` is not `none`. Calls in a form we do not know stay content.
    """
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    index: int
    id: str
    name: str
    arguments: str
    """JSON text of an object, as it was sampled."""


class Kind(StrEnum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"
    MARKER = "marker"
    """Tags and the white space around them: the client is not told."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the reply. The texts of all pieces, joined, are the reply's whole text."""

    kind: Kind
    text: str
    call: ToolCall | None = None
    """For `CALL`: whole, because a call that turns out malformed must still become content."""

    def delta(self) -> dict[str, Any] | None:
        """The `delta` of OpenAI's chunk: content, `reasoning` (vLLM's name) or `tool_calls`; None: no chunk."""
        raise NotImplementedError


class ReplyParser:
    """Parses one reply. However the text is cut into chunks, the joined pieces are the same."""

    def __init__(self, form: ReplyForm) -> None:
        self.reply: Reply
        """All that was told so far."""
        raise NotImplementedError

    def add(self, text: str) -> list[Piece]:
        """Take text; the pieces that are certain now."""
        raise NotImplementedError

    def finish(self) -> list[Piece]:
        """The pieces held back, at the end of the reply: unfinished calls come out as content."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply taken apart."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def message(self) -> dict[str, Any]:
        """OpenAI's assistant message: `content` is null when there are only calls; `reasoning` if any."""
        raise NotImplementedError

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` in place of `stop` when there are calls, else `reason`."""
        raise NotImplementedError
