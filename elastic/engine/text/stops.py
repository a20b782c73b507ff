"""Stop strings, found while text streams: text that may begin one is held back."""

from __future__ import annotations

from collections.abc import Sequence

from gyre.proxy.errors import RequestError

_MOST = 64
_LONGEST = 4096


class StopStrings:
    """Cuts one output at the first stop string that is complete; of two that end together, the longer."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string is part of the text. RequestError 400 for an empty one or too many."""
        _check(stops)
        self.matched: str | None = None
        """The stop string that ended the output; all text after it is dropped."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def add(self, text: str) -> str:
        """Take text; what is certain to lie before any stop string."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else end - len(self.matched)]
        self._held = text[len(text) - self._begun(text) :]
        return text[: len(text) - len(self._held)]

    def flush(self) -> str:
        """The text held back, at the end of the output."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        return max((begun(text, stop) for stop in self._stops), default=0)


def begun(text: str, marker: str) -> int:
    """Length of the longest end of `text` that `marker` begins with, the whole marker not counted."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def _check(stops: Sequence[str]) -> None:
    if len(stops) > _MOST:
        raise RequestError(f"stop has {len(stops)} strings; at most {_MOST} are possible")
    for stop in stops:
        if not stop:
            raise RequestError("stop must not hold an empty string")
        if len(stop) > _LONGEST:
            raise RequestError(f"a stop string has {len(stop)} characters; at most {_LONGEST} are possible")
