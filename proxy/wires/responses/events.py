"""Events of one stream, numbered."""

from __future__ import annotations

from typing import Any

import msgspec


class Events:
    def __init__(self) -> None:
        self._number = 0

    def write(self, kind: str, **fields: Any) -> bytes:
        """One whole SSE event."""
        data = msgspec.json.encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
