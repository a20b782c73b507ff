"""Arguments of tool calls: as they were sampled, and the text of custom tools inside them.

A custom tool takes one text and no JSON. The engine knows it as a function with the parameter `input`;
what comes back is decoded as it streams.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gyre.proxy.arguments import same_arguments
from gyre.proxy.wires.translation import Dialect

PARAMETER = "input"
_HEAD = re.compile(r'[ \t\r\n]{0,32}\{[ \t\r\n]{0,32}"input"[ \t\r\n]{0,32}:[ \t\r\n]{0,32}"')
_HEAD_LIMIT = 160
"""Longer than any head, so that how the text was cut decides nothing."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9a-fA-F]{4}")


def as_sampled(dialect: Dialect, call_id: str, given: str) -> str:
    """Arguments as the model wrote them, where `given` is the same JSON spelled differently."""
    return next((said for said in dialect.sampled(call_id) if same_arguments(said, given)), given)


def of_custom(dialect: Dialect, call_id: str, text: str) -> str:
    """Arguments of a custom tool's call whose input is `text`."""
    written = json.dumps({PARAMETER: text}, ensure_ascii=False)
    return next((said for said in dialect.sampled(call_id) if input_of(said) == text), written)


def of_value(dialect: Dialect, call_id: str, value: Any) -> str:
    """Arguments of a call whose item has them as a value, not as text."""
    told = json.dumps(value)
    for said in dialect.sampled(call_id):
        if same_arguments(json.dumps(value_of(said)), told):
            return said
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def value_of(arguments: str) -> Any:
    """The value of arguments; the text itself where it is no JSON."""
    try:
        return json.loads(arguments) if arguments else {}
    except (json.JSONDecodeError, RecursionError):
        return arguments


def input_of(arguments: str) -> str:
    """The text that a custom tool was called with."""
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


class InputReader:
    """Decodes `{"input": "..."}` piece by piece; however it is cut, the pieces add up to the same text.

    What is not of that form is the text as it stands, since that is what the model wrote: the tool
    will say what it thinks of it. Only `finish` can know.
    """

    def __init__(self) -> None:
        self._raw: list[str] = []
        self._held = ""
        """Of the head, until it is complete; then of an escape."""
        self._inside: bool | None = None
        """None while the head is not known, False after the closing quote or without one."""

    def feed(self, piece: str) -> str:
        """The text that `piece` completes."""
        if self._inside is None:
            self._raw.append(piece)
            self._held += piece
            found = _HEAD.match(self._held)
            if found is None:
                if len(self._held) > _HEAD_LIMIT:
                    self._inside, self._held = False, ""
                return ""
            piece, self._held = self._held[found.end() :], ""
            self._inside, self._raw = True, []
        return self._decode(piece) if self._inside else self._keep(piece)

    def finish(self) -> str:
        """What is left when the arguments are over."""
        if self._inside:
            # An escape that was cut off says nothing, half a pair of surrogates is no character.
            return "\ufffd" if _is_half(self._held) else ""
        return _whole("".join(self._raw)) if self._raw else ""

    def _keep(self, piece: str) -> str:
        if self._raw:
            self._raw.append(piece)
        return ""

    def _decode(self, piece: str) -> str:
        text, self._held = self._held + piece, ""
        out: list[str] = []
        at = 0
        while at < len(text):
            if plain := _PLAIN.match(text, at):
                out.append(plain[0])
                at = plain.end()
            elif text[at] == '"':
                self._inside = False
                break
            else:
                taken = _escape(text, at)
                if taken is None:
                    self._held = text[at:]
                    break
                out.append(taken[0])
                at = taken[1]
        return "".join(out)


def _escape(text: str, at: int) -> tuple[str, int] | None:
    """The character of the escape at `at` and where it ends; None when it is not complete."""
    if at + 1 == len(text):
        return None
    letter = text[at + 1]
    if letter in '"\\/':
        return letter, at + 2
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    if letter != "u":
        # No escape of JSON: a model that forgot to double its backslash.
        return text[at : at + 2], at + 2
    return _unicode(text, at)


def _unicode(text: str, at: int) -> tuple[str, int] | None:
    digits = text[at + 2 : at + 6]
    if not _HEX.fullmatch(digits):
        return None if len(digits) < 4 and _is_hex(digits) else (text[at : at + 2], at + 2)
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), at + 6
    low = _low(text[at + 6 : at + 12]) if code < 0xDC00 else -1
    if low is None:
        return None
    if low < 0:
        return "\ufffd", at + 6
    return chr(0x10000 + ((code - 0xD800) << 10) + low - 0xDC00), at + 12


def _low(following: str) -> int | None:
    """The second half of a pair; None while it may still come, -1 when it does not."""
    if len(following) < 6:
        start = r"\u"[: len(following)]
        may_come = following.startswith(start) and _is_hex(following[2:])
        return None if may_come else -1
    if not following.startswith("\\u") or not _HEX.fullmatch(following[2:]):
        return -1
    code = int(following[2:], 16)
    return code if 0xDC00 <= code < 0xE000 else -1


def _is_half(held: str) -> bool:
    """Whether this is the first half of a pair whose second half is missing."""
    return _HEX.fullmatch(held[2:6]) is not None


def _is_hex(digits: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)


def _whole(raw: str) -> str:
    """The input of arguments that do not begin with it."""
    try:
        value = json.loads(raw)
    except (json.JSONDecodeError, RecursionError):
        return raw
    text = value.get(PARAMETER) if isinstance(value, dict) else None
    return (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(text, str) else raw
    )
