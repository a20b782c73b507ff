"""Keys and values kept between calls, found again by the tokens they are of.

A call that extends an earlier one takes over its memory without a copy ("lent"); one that leaves it
earlier (a retry, a branch, a sub-agent with the same system prompt) copies the part they share.
Everything here is of the current weights: `clear` at each publication.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from gyre.elastic.engine.compute.kv import SequenceKV

Ids = npt.NDArray[np.int32]
BLOCK = 16
"""Prefixes are looked up at multiples of so many tokens; shorter ones are not worth it."""
COMPARED = 8
"""Entries with the same longest block chain that are compared token by token."""


@dataclass(slots=True, eq=False)
class Entry:
    ids: Ids
    kv: SequenceKV
    chain: list[bytes]
    lent: bool = False
    """A running sequence appends to this memory; the first `len(ids)` positions stay as they are."""


class PrefixStore:
    """Least recently used first out; the owner asks for room with `evict`."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._by_block: dict[bytes, list[Entry]] = {}
        self.nbytes = 0
        """Memory that only the store holds: not what is lent."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, ids: Sequence[int] | Ids, kv: SequenceKV, *, lent: bool = False) -> None:
        """Keep `kv`, whose positions are `ids`; replaces what was lent of the same memory."""
        self.forget(kv)
        array = np.asarray(ids[: kv.length], np.int32)
        entry = Entry(array, kv, list(_chain(array)), lent)
        if not entry.chain or (not lent and self._covered(entry)):
            return
        self._entries[id(kv)] = entry
        self.nbytes += 0 if lent else kv.nbytes
        for digest in entry.chain:
            self._by_block.setdefault(digest, []).append(entry)

    def _covered(self, entry: Entry) -> bool:
        """Whether another entry holds the same tokens and perhaps more."""
        others = self._by_block.get(entry.chain[-1], [])
        return any(common(other.ids, entry.ids) == len(entry.ids) for other in others)

    def find(self, ids: Sequence[int] | Ids) -> tuple[Entry, int] | None:
        """The entry that shares the most leading tokens with `ids`, and how many."""
        array = np.asarray(ids, np.int32)
        best: list[Entry] = []
        for digest in _chain(array):
            entries = self._by_block.get(digest)
            if not entries:
                break
            best = entries
        if not best:
            return None
        shared = [(common(entry.ids, array), entry) for entry in best[-COMPARED:]]
        length, entry = max(shared, key=lambda pair: pair[0])
        self._entries.move_to_end(id(entry.kv))
        return entry, length

    def take(self, ids: Sequence[int] | Ids, *, room: int) -> SequenceKV | None:
        """Memory that begins with some of `ids`, for one sequence to append to; None: nothing found.

        `room` is the capacity to take for a copy.
        """
        found = self.find(ids)
        if found is None:
            return None
        entry, length = found
        if length == len(entry.ids) == entry.kv.length and not entry.lent:
            entry.lent = True
            self.nbytes -= entry.kv.nbytes
            return entry.kv
        return entry.kv.copy(length, room)

    def forget(self, kv: SequenceKV) -> None:
        """Drop what is kept of this memory: it is about to change, or to go."""
        entry = self._entries.pop(id(kv), None)
        if entry is None:
            return
        self.nbytes -= 0 if entry.lent else kv.nbytes
        for digest in entry.chain:
            entries = self._by_block[digest]
            entries.remove(entry)
            if not entries:
                del self._by_block[digest]

    def evict(self) -> bool:
        """Give up the least recently used memory; False: there is none to give up."""
        entry = next((entry for entry in self._entries.values() if not entry.lent), None)
        if entry is not None:
            self.forget(entry.kv)
        return entry is not None

    def clear(self) -> None:
        self._entries.clear()
        self._by_block.clear()
        self.nbytes = 0


def common(left: Ids, right: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def _chain(ids: Ids) -> Iterator[bytes]:
    """A digest for each whole block, of it and all before it."""
    digest = b""
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        digest = xxhash.xxh3_128_digest(digest + ids[start : start + BLOCK].tobytes())
        yield digest
