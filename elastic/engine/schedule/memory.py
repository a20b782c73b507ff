"""Who may use how much memory for keys and values: running sequences first, kept ones with the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from gyre.elastic.engine.compute.kv import GRAIN, KVShape, SequenceKV, rounded
from gyre.elastic.engine.compute.sequence import Sequence
from gyre.elastic.engine.schedule.prefix import PrefixStore
from gyre.proxy.errors import RequestError

AHEAD = 512
"""Tokens of output for which a new sequence takes memory at once, so that it need not grow soon."""

NAMES = 1024
"""Imports that can be named; the oldest is forgotten first."""


class Memory:
    """Bounded by `limit_bytes`; what is kept gives way to what runs."""

    def __init__(self, shape: KVShape, limit_bytes: int) -> None:
        self.shape = shape
        self.limit_bytes = limit_bytes
        self.ahead = AHEAD
        self.store = PrefixStore()
        self.imported: dict[str, tuple[list[int], SequenceKV | None]] = {}
        """By `kv_id`, the tokens; and the KV where only the name may lead to it."""

    def used(self, running: Iterable[Sequence]) -> int:
        # Also asked by other threads while this one works: hence the copies.
        moved = sum(kv.nbytes for _, kv in list(self.imported.values()) if kv is not None)
        return moved + self.store.nbytes + _held(list(running))

    def room_of(self, sequence: Sequence) -> int:
        """The capacity in tokens that a sequence starts with."""
        left = sequence.request.max_tokens - sequence.output_length
        most = self.limit_bytes // self.shape.token_bytes // GRAIN * GRAIN
        return min(rounded(len(sequence.ids) + min(left, self.ahead)), most)

    def fits(self, tokens: int, running: Iterable[Sequence]) -> bool:
        """Whether `tokens` more could be held beside `running`, once everything kept is given up."""
        return _held(running) + rounded(tokens) * self.shape.token_bytes <= self.limit_bytes

    def take_in(self, kv_id: str, ids: list[int], kv: SequenceKV, version: str) -> None:
        """KV from another engine. Whole of the current weights it is kept like any other, and found by its
        tokens; with a part by older ones only its name leads to it."""
        whole = kv.only(version)
        if whole:
            self.store.put(ids, kv)
        self.imported[kv_id] = (ids, None if whole else kv)
        while len(self.imported) > NAMES:
            del self.imported[next(iter(self.imported))]

    def require_imported(self, sequence: Sequence) -> None:
        """Raises:
        RequestError: 409, the KV that the request names is not here, or is of other tokens.
        """
        kv_id = sequence.request.kv_id
        if kv_id is None:
            return
        ids, _ = self.imported.get(kv_id, (None, None))
        if ids is None or sequence.ids[: len(ids)] != ids:
            why = "is not here" if ids is None else "is of other tokens"
            raise RequestError(f"`kv_id` {kv_id} {why}", 409, "kv_unknown", "continue from the ids alone")

    def _take_imported(self, sequence: Sequence) -> SequenceKV | None:
        """None also where it had to give way while the sequence waited: then it is computed anew."""
        _, kv = self.imported.pop(sequence.request.kv_id or "", (None, None))
        if kv is not None:
            kv.truncate(len(sequence.ids) - 1)
        return kv

    def start(self, sequence: Sequence) -> None:
        """Give a sequence its memory, with what is known of its first tokens.

        Raises:
            RuntimeError, MemoryError: the machine has none left.
        """
        room = self.room_of(sequence)
        sequence.kv = sequence.kv or self._take_imported(sequence)
        if sequence.kv is None:
            reusable = sequence.request.prompt_logprobs is None
            # The last token is always computed: its logits are what the next one is drawn from.
            kv = self.store.take(sequence.array[:-1], room=room) if reusable else None
            sequence.kv = kv or SequenceKV(self.shape, room)
        if not sequence.told:
            sequence.cached_tokens = min(sequence.kv.length, sequence.prompt_length)

    def shrink(self, running: Iterable[Sequence]) -> bool:
        """Give up kept memory until the limit holds; False: the running ones alone are above it."""
        held = list(running)
        while self.used(held) > self.limit_bytes:
            if not self.give_up():
                return False
        return True

    def give_up(self) -> bool:
        if self.store.evict():
            return True
        oldest = next((name for name, (_, kv) in self.imported.items() if kv is not None), None)
        if oldest is not None:
            del self.imported[oldest]
        return oldest is not None

    def grow(self, sequence: Sequence, tokens: int, running: list[Sequence]) -> bool:
        """Room for positions [0, tokens); what is kept gives way. False: the running ones need it.

        Raises:
            RuntimeError, MemoryError: the machine has none left.
        """
        kv = sequence.kv
        assert kv is not None
        if tokens <= kv.capacity:
            return True
        # Half as much again where there is room, so that appends are linear in the end.
        for capacity in (rounded(max(tokens, kv.capacity + kv.capacity // 2)), rounded(tokens)):
            more = capacity - kv.capacity
            if self.fits(more, running):
                while self.used(running) + more * self.shape.token_bytes > self.limit_bytes:
                    self.give_up()
                kv.reserve(capacity)
                return True
        return False

    def keep(self, sequence: Sequence, version: str) -> None:
        """A sequence has ended: others may go on from it, unless older weights had a part in it."""
        kv = sequence.kv
        if kv is None:
            return
        self.store.forget(kv)
        if kv.only(version):
            with contextlib.suppress(RuntimeError, MemoryError):  # no memory to make it smaller with
                kv.trim()
            self.store.put(sequence.ids, kv)

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence's memory away."""
        if sequence.kv is not None:
            self.store.forget(sequence.kv)
            sequence.kv = None

    def clear(self) -> None:
        """Keep nothing: the weights change, or the machine's memory is short."""
        self.store.clear()
        self.imported.clear()


def _held(sequences: Iterable[Sequence]) -> int:
    return sum(kv.nbytes for one in sequences if (kv := one.kv) is not None)
