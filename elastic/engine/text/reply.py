"""A reply's text taken apart while it streams: reasoning, content, tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any
from uuid import uuid4

from gyre.elastic.engine.text.call import CALL, END_CALL, CallBody, CallText
from gyre.elastic.engine.text.stops import begun

THINK, END_THINK = "<think>", "</think>"
MARKERS = (THINK, END_THINK, CALL, END_CALL)


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


def reply_form(template: str, prompt: str, *, tools: bool, parallel_tool_calls: bool = True) -> ReplyForm:
    """The form of replies to a prompt (its text), by what the template's text mentions.

    `tools`: tools were given and `tool_choice` is not `none`. Calls in a form we do not know stay content.
    """
    return ReplyForm(
        reasoning=END_THINK in template,
        # Qwen3-Coder puts XML between the same tags.
        tools=tools and CALL in template and "<function=" not in template,
        thinking=END_THINK in template and prompt.rstrip().endswith(THINK),
        max_calls=None if parallel_tool_calls else 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    index: int
    id: str
    name: str
    arguments: str
    """JSON text of an object, as it was sampled."""

    def as_json(self) -> dict[str, Any]:
        """As in OpenAI's message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


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
        """The `delta` of OpenAI's chunk (`reasoning` is vLLM's name); None: nothing to tell."""
        if self.call is not None:
            return {"tool_calls": [{"index": self.call.index, **self.call.as_json()}]}
        return None if self.kind is Kind.MARKER else {self.kind.value: self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply taken apart."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def message(self) -> dict[str, Any]:
        """OpenAI's assistant message: `content` is null when there are only calls; `reasoning` if any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.calls:
            message["content"] = self.content or None
            message["tool_calls"] = [call.as_json() for call in self.calls]
        return message

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` in place of `stop` when there are calls, else `reason`."""
        return "tool_calls" if self.calls and reason == "stop" else reason


def assemble(pieces: Iterable[Piece]) -> Reply:
    """The reply that was told in pieces."""
    texts: dict[Kind, list[str]] = {kind: [] for kind in Kind}
    calls = []
    for piece in pieces:
        texts[piece.kind].append(piece.text)
        calls += [piece.call] if piece.call else []
    content, reasoning = "".join(texts[Kind.CONTENT]), "".join(texts[Kind.REASONING])
    return Reply(content=content, reasoning=reasoning, calls=tuple(calls))


class _At(Enum):
    START = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class ReplyParser:
    """Parses one reply. However the text is cut into chunks, the joined pieces are the same.

    White space around a tag belongs to the tag. Text that may still turn out to be one is held back.
    """

    def __init__(self, form: ReplyForm) -> None:
        self._form = form
        self._at = _At.START if form.reasoning or form.thinking else _At.CONTENT
        self._text = ""
        """Not yet told."""
        self._skip = form.thinking
        """The white space that comes next belongs to the tag before it."""
        self._call = CallText(0)
        self._calls = 0
        self._told: list[Piece] = []

    @property
    def reply(self) -> Reply:
        """All that was told so far."""
        return assemble(self._told)

    def add(self, text: str) -> list[Piece]:
        """Take text; the pieces that are certain now."""
        self._text += text
        return self._advance(ended=False)

    def finish(self) -> list[Piece]:
        """The pieces held back, at the end of the reply: unfinished calls come out as content."""
        return self._advance(ended=True)

    def _advance(self, *, ended: bool) -> list[Piece]:
        before = len(self._told)
        while self._step(ended):
            pass
        return self._told[before:]

    def _step(self, ended: bool) -> bool:
        """Tell what is certain in one state; False: the rest has to wait."""
        if self._skip:
            self._take(Kind.MARKER, len(self._text) - len(self._text.lstrip()))
            self._skip = not self._text
        if not self._text:
            return False
        match self._at:
            case _At.START:
                return self._start(ended)
            case _At.REASONING:
                return self._reasoning(ended)
            case _At.CONTENT:
                return self._content(ended)
            case _At.CALL:
                return self._tool_call(ended)

    def _start(self, ended: bool) -> bool:
        text = self._text.lstrip()
        if THINK.startswith(text) and text != THINK and not ended:
            return False
        self._at = _At.REASONING if self._form.thinking else _At.CONTENT
        if text.startswith(THINK):
            self._take(Kind.MARKER, len(self._text) - len(text) + len(THINK))
            self._at, self._skip = _At.REASONING, True
        return True

    def _reasoning(self, ended: bool) -> bool:
        found = self._until(Kind.REASONING, END_THINK, ended)
        if found:
            self._take(Kind.MARKER, found)
            self._at, self._skip = _At.CONTENT, True
        return found > 0

    def _content(self, ended: bool) -> bool:
        if not self._form.tools or self._calls == self._form.max_calls:
            self._take(Kind.CONTENT, len(self._text))
            return False
        found = self._until(Kind.CONTENT, CALL, ended)
        if found:
            self._at, self._call = _At.CALL, CallText(found)
        return found > 0

    def _tool_call(self, ended: bool) -> bool:
        call = self._call
        call.follow(self._text)
        end = call.close(self._text, ended=ended)
        if call.malformed:
            self._take(Kind.CONTENT, call.opening)
        elif end is not None and call.body is not None:
            self._take(Kind.MARKER, call.start)
            self._take(Kind.CALL, call.end - call.start, self._new_call(call.body))
            self._take(Kind.MARKER, end - call.end)
            self._skip = True
        else:
            return False
        self._at = _At.CONTENT
        return True

    def _new_call(self, body: CallBody) -> ToolCall:
        index, self._calls = self._calls, self._calls + 1
        arguments = bytes(body.arguments).decode()
        return ToolCall(index=index, id=f"call_{uuid4().hex[:24]}", name=body.name, arguments=arguments)

    def _until(self, kind: Kind, tag: str, ended: bool) -> int:
        """Tell the text before `tag`. How much of the rest is the tag with its white space; 0: not found."""
        at = self._text.find(tag)
        before = self._text[: len(self._text) - begun(self._text, tag)] if at < 0 else self._text[:at]
        self._take(kind, len(self._text) if at < 0 and ended else len(before.rstrip()))
        return 0 if at < 0 else self._text.index(tag) + len(tag)

    def _take(self, kind: Kind, length: int, call: ToolCall | None = None) -> None:
        if length:
            self._told.append(Piece(kind, self._text[:length], call))
            self._text = self._text[length:]
