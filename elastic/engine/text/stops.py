"""Stop strings, found while text streams: text that may begin one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts one output at the first stop string that is complete; of two that end together, the longer."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string is part of the text. RequestError 400 for an empty one or too many."""
        self.matched: str | None = None
        """The stop string that ended the output; all text after it is dropped."""
        raise NotImplementedError

    def add(self, text: str) -> str:
        """Take text; what is certain to lie before any stop string."""
        raise NotImplementedError

    def flush(self) -> str:
        """The text held back, at the end of the output."""
        raise NotImplementedError
