"""The store of kept memory against a naive one, which compares all tokens of all it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.elastic.engine.compute.kv import SequenceKV
from gyre.elastic.engine.schedule.prefix import BLOCK, COMPARED, PrefixStore
from tests.engine.core.test_parts import ONE, read, write


def _common(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


@dataclass
class Lease:
    """A sequence that runs on memory of its own or on what was lent to it."""

    kv: SequenceKV
    ids: list[int]


@dataclass
class Pair:
    """The store, and what it must hold by plain comparison."""

    store: PrefixStore = field(default_factory=PrefixStore)
    kept: list[tuple[list[int], SequenceKV]] = field(default_factory=list)
    """What only the store holds, and what is lent."""
    running: list[Lease] = field(default_factory=list)

    def start(self, ids: list[int]) -> None:
        best = max((_common(ids, kept) for kept, _ in self.kept), default=0)
        rivals = [kept for kept, _ in self.kept if _common(ids, kept) // BLOCK == best // BLOCK]
        found = self.store.find(ids)
        kv = self.store.take(ids, room=len(ids) + 10)
        assert (kv is None) == (found is None) == (best < BLOCK)
        if kv is not None:
            assert best // BLOCK * BLOCK <= kv.length <= best
            if len(rivals) <= COMPARED:
                assert kv.length == best
            assert not any(kv is lease.kv for lease in self.running)
            assert read(kv) == ids[: kv.length]
        kv = kv or SequenceKV(ONE, 10)
        lease = Lease(kv, list(ids))
        write(kv, ids[kv.length :], "1")
        self.running.append(lease)

    def go_on(self, lease: Lease, ids: list[int]) -> None:
        write(lease.kv, ids, "1")
        lease.ids += ids

    def lend(self, lease: Lease) -> None:
        """As when its prompt is computed and others may copy it."""
        self._forget(lease.kv)
        self.store.put(lease.ids, lease.kv, lent=True)
        if len(lease.ids) >= BLOCK:
            self.kept.append((list(lease.ids), lease.kv))

    def finish(self, lease: Lease) -> None:
        self._leave(lease)
        covered = any(_common(lease.ids, kept) == len(lease.ids) for kept, _ in self.kept)
        self.store.put(lease.ids, lease.kv)
        # Tokens behind the last whole block do not tell two entries apart.
        if len(lease.ids) >= BLOCK and not covered:
            self.kept.append((list(lease.ids), lease.kv))

    def drop(self, lease: Lease) -> None:
        self._leave(lease)
        self.store.forget(lease.kv)

    def _leave(self, lease: Lease) -> None:
        self.running = [other for other in self.running if other is not lease]
        self._forget(lease.kv)

    def _forget(self, kv: SequenceKV) -> None:
        self.kept = [pair for pair in self.kept if pair[1] is not kv]

    def evict(self) -> None:
        free = self._free()
        assert self.store.evict() == bool(free)
        gone = [pair for pair in free if not self._holds(pair)]
        assert len(gone) == (1 if free else 0)
        self.kept = [pair for pair in self.kept if not any(pair is one for one in gone)]

    def _holds(self, pair: tuple[list[int], SequenceKV]) -> bool:
        return id(pair[1]) in self.store._entries

    def _free(self) -> list[tuple[list[int], SequenceKV]]:
        return [pair for pair in self.kept if not any(pair[1] is lease.kv for lease in self.running)]

    def check(self) -> None:
        assert len(self.store) == len(self.kept)
        assert all(self._holds(pair) for pair in self.kept)
        assert self.store.nbytes == sum(kv.nbytes for _, kv in self._free())
        for ids, kv in self.kept:
            assert read(kv)[: len(ids)] == ids
        if not self.kept:
            assert not self.store._by_block


CHUNK = st.integers(0, 2).flatmap(lambda id_: st.integers(1, 20).map(lambda count: [id_] * count))
IDS = st.lists(CHUNK, min_size=1, max_size=6).map(lambda chunks: [id_ for one in chunks for id_ in one])
WHICH = st.integers(0, 99)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["start", "start", "go_on", "finish"]), WHICH, IDS),
        st.tuples(st.sampled_from(["lend", "finish", "drop", "evict", "extend"]), WHICH, IDS),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(DEEDS)
def test_the_store_finds_what_a_naive_one_finds(deeds: list[tuple[str, int, list[int]]]) -> None:
    pair = Pair()
    for deed, which, ids in deeds:
        lease = pair.running[which % len(pair.running)] if pair.running else None
        if deed == "start":
            pair.start(ids)
        elif deed == "extend" and pair.kept:
            pair.start([*pair.kept[which % len(pair.kept)][0], *ids])
        elif deed == "evict":
            pair.evict()
        elif lease is not None and deed == "go_on":
            pair.go_on(lease, ids)
        elif lease is not None and deed in ("lend", "finish", "drop"):
            getattr(pair, deed)(lease)
        pair.check()


def _kept(store: PrefixStore, ids: list[int]) -> SequenceKV:
    kv = SequenceKV(ONE)
    write(kv, ids, "1")
    store.put(ids, kv)
    return kv


def test_memory_that_is_extended_whole_is_handed_over_and_not_copied() -> None:
    store = PrefixStore()
    kv = _kept(store, list(range(40)))
    assert store.take(list(range(50)), room=100) is kv
    assert store.nbytes == 0
    again = store.take(list(range(50)), room=100)
    assert again is not None and again is not kv
    assert again.capacity == 128
    assert not store.evict()
    store.put([*range(40)], kv)
    assert store.nbytes == kv.nbytes
    assert store.evict() and len(store) == store.nbytes == 0


def test_the_least_recently_used_goes_first() -> None:
    store = PrefixStore()
    ids = [[n] * 20 for n in range(3)]
    for one in ids:
        _kept(store, one)
    store.find(ids[0])
    order = []
    while store.evict():
        order.append([n for n in range(3) if store.find(ids[n]) is None])
    # Looking refreshes as well: only the first eviction tells of the order before.
    assert order[0] == [1]


def test_a_conversation_is_kept_once() -> None:
    store = PrefixStore()
    _kept(store, list(range(64)))
    before = store.nbytes
    _kept(store, list(range(40)))
    assert (len(store), store.nbytes) == (1, before)
    _kept(store, [*range(64), 1])
    assert len(store) == 2


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1])
def test_less_than_a_block_is_not_kept(length: int) -> None:
    store = PrefixStore()
    _kept(store, list(range(length)))
    assert len(store) == 0
    assert store.find(list(range(length))) is None
