"""The JSON between `<tool_call>` and `</tool_call>`, followed while it streams."""

from __future__ import annotations

import msgspec

CALL, END_CALL = "<tool_call>", "</tool_call>"


class CallBody(msgspec.Struct, frozen=True):
    """The object that a call is; other keys are let through."""

    name: str
    arguments: msgspec.Raw


class CallText:
    """Finds the end of a call's object, or the first character that cannot belong to one.

    The object's own braces decide, not the tags: `</tool_call>` inside a string is part of that string.
    """

    def __init__(self, at: int) -> None:
        """`at`: where in the text the tag ends."""
        self.opening = at
        """Length of the tag and what stands before it."""
        self.body: CallBody | None = None
        self.malformed = False
        self.start = self.end = at
        """The object is text[start:end] once `body` is there."""
        self._at = at
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def follow(self, text: str) -> None:
        """Read on; `text` is what it was before, and more."""
        while self.body is None and not self.malformed and self._at < len(text):
            depth = self._depth
            self.malformed = not self._accept(text[self._at])
            self._at += 1
            if depth == 0 and self._depth == 1:
                self.start = self._at - 1
            if depth == 1 and self._depth == 0:
                self._decode(text)

    def close(self, text: str, *, ended: bool) -> int | None:
        """Where the call ends, its tag included, once that is sure; at the reply's end the tag may lack."""
        if self.body is None:
            self.malformed = self.malformed or ended
            return None
        rest = text[self.end :].lstrip()
        if rest.startswith(END_CALL):
            return len(text) - len(rest) + len(END_CALL)
        if not END_CALL.startswith(rest):
            self.malformed = True
        return len(text) if ended and not self.malformed else None

    def _accept(self, char: str) -> bool:
        if self._quoted:
            return self._in_string(char)
        if char in "{[":
            self._depth += 1
            return char == "{" or self._depth > 1
        if char in "}]":
            self._depth -= 1
            return self._depth >= 0
        self._quoted = char == '"'
        return char != "<" if self._depth else char.isspace()

    def _in_string(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._quoted = False
        return char >= " "

    def _decode(self, text: str) -> None:
        self.end = self._at
        try:
            body = msgspec.json.decode(text[self.start : self.end], type=CallBody)
        except (msgspec.MsgspecError, RecursionError):
            self.malformed = True
            return
        self.malformed = not (body.name and bytes(body.arguments).startswith(b"{"))
        self.body = None if self.malformed else body
