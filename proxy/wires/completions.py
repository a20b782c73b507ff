"""completions: the text of one choice, whole."""

from __future__ import annotations

import msgspec


class TextBuilder:
    """Collects one choice's pieces of text; kept as `{"text": ...}`."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text)

    def message(self) -> bytes:
        return msgspec.json.encode({"text": "".join(self._parts)})

    @property
    def empty(self) -> bool:
        return not any(self._parts)
