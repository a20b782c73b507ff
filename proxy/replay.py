"""Answers kept for SDK retries: the reply got lost on the way, not in the engine."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MOST_BYTES = 64 << 20
Key = tuple[str, bytes]
"""(execution, digest of the request body)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer as its client got it."""

    call_id: str
    status: int
    headers: dict[str, str]
    body: bytes


class Replays:
    """The last answers, at most 64 MB of them."""

    def __init__(self) -> None:
        self._stored: OrderedDict[Key, Stored] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Stored | None:
        return self._stored.get(key)

    def put(self, key: Key, stored: Stored) -> None:
        if old := self._stored.pop(key, None):
            self._bytes -= len(old.body)
        self._stored[key] = stored
        self._bytes += len(stored.body)
        while self._bytes > _MOST_BYTES:
            _, oldest = self._stored.popitem(last=False)
            self._bytes -= len(oldest.body)
