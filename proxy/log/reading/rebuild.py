"""Whole prompts and whole message lists from rows that only hold what was new. Pure.

Both are byte strings here: token ids as little-endian int32, messages as 16-byte addresses. A row's
whole is (parent.whole + parent.tail)[:shared] + suffix, where the tail is the row's output.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.sealing.widen import RowKey

Bytes = bytes | memoryview

_ALWAYS_KEPT = 4
"""An execution has a few branches that grow in turn."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one row holds of its whole; lengths in bytes."""

    parent: RowKey | None
    shared: int
    suffix: Bytes
    tail: Bytes = b""

    @property
    def length(self) -> int:
        return self.shared + len(self.suffix)


class Rebuilder:
    """Wholes by key. Walks up the parents without recursion and stops at one it built recently.

    So a walk over all rows in commit order costs the bytes it returns and a bounded cache, however
    deep the chains are.
    """

    def __init__(self, part: Callable[[RowKey], Part | None], cache_bytes: int = 64 << 20) -> None:
        self._part = part
        self._cache: OrderedDict[RowKey, bytes] = OrderedDict()
        self._cached = 0
        self._most = cache_bytes

    def whole(self, key: RowKey) -> bytes:
        """Raises CorruptLogError when a parent is missing, too short, or its own ancestor."""
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        part = self._need(key, key)
        whole = self.prefix(key, part.length)
        self.remember(key, whole)
        return whole

    def prefix(self, key: RowKey, limit: int) -> bytes:
        """The first `limit` bytes of the row's whole + tail."""
        pieces: list[Bytes] = []
        visited: set[RowKey] = set()
        current: RowKey | None = key
        while limit > 0:
            if current is None or current in visited:
                raise CorruptLogError(f"call `{key[0]}` cannot be rebuilt: its parents form no chain")
            visited.add(current)
            part = self._need(current, key)
            if limit > part.length + len(part.tail):
                raise CorruptLogError(f"call `{key[0]}` cannot be rebuilt: `{current[0]}` is too short")
            if limit > part.length:
                pieces.append(part.tail[: limit - part.length])
                limit = part.length
            if current in self._cache:
                pieces.append(memoryview(self._cache[current])[:limit])
                break
            if limit > part.shared:
                pieces.append(part.suffix[: limit - part.shared])
                limit = part.shared
            current = part.parent
        return b"".join(reversed(pieces))

    def _need(self, key: RowKey, wanted: RowKey) -> Part:
        part = self._part(key)
        if part is None:
            raise CorruptLogError(f"call `{wanted[0]}` cannot be rebuilt: `{key[0]}` is missing")
        return part

    def remember(self, key: RowKey, whole: bytes) -> None:
        """Keep a whole for rows to build upon; the newest few are kept however long they are."""
        self._cache[key] = whole
        self._cached += len(whole)
        while self._cached > self._most and len(self._cache) > _ALWAYS_KEPT:
            _, oldest = self._cache.popitem(last=False)
            self._cached -= len(oldest)
