"""Sequences that are attended together have the attention that each has alone."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import pytest
import torch

from gyre.elastic.engine.compute import singles
from gyre.elastic.engine.compute.kv import KVShape, SequenceKV
from gyre.elastic.engine.compute.singles import Chunk, Gathered, Gatherer, Singles

SHAPE = KVShape(layers=2, heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
GROUP = 3


def some_kvs(lengths: Sequence[int]) -> list[SequenceKV]:
    random = torch.Generator().manual_seed(len(lengths))
    kvs = [SequenceKV(SHAPE, 200) for _ in lengths]
    for kv, length in zip(kvs, lengths, strict=True):
        kv.data.fill_(torch.nan)  # what lies behind a sequence's end is anything
        kv.data[:, :, :, :length] = torch.randn(kv.data[:, :, :, :length].shape, generator=random)
        kv.advance(length, "1")
    return kvs


def chunks_of(kvs: Sequence[SequenceKV]) -> list[Chunk]:
    return [Chunk(kv, kv.length, 1) for kv in kvs]


def attend(
    kvs: Sequence[SequenceKV], gathered: Gathered | None, window: int | None, seed: int
) -> list[torch.Tensor]:
    """A step: each layer's outputs; the KV is a token longer afterwards."""
    random = torch.Generator().manual_seed(seed)
    shape = (len(kvs), SHAPE.heads, GROUP, SHAPE.head_dim)
    rows = Singles(chunks_of(kvs)) if gathered is None else gathered
    outs = []
    for layer in range(SHAPE.layers):
        query = torch.randn(shape, generator=random)
        new = torch.randn((2, SHAPE.heads, len(kvs), SHAPE.head_dim), generator=random)
        outs.append(rows.attend(layer, query, new, window))
    for kv in kvs:
        kv.advance(1, "1")
    return outs


@pytest.mark.parametrize("window", [None, 1, 7, 30])
@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [40, 3, 0, 17, 40], [1, 2, 3, 90]])
def test_together_as_alone(lengths: list[int], window: int | None) -> None:
    ours, theirs = some_kvs(lengths), some_kvs(lengths)
    gatherer = Gatherer()
    for step in range(singles.ROOM + 5):
        gathered = gatherer.gather(chunks_of(ours))
        assert gathered is not None
        together = attend(ours, gathered, window, step)
        alone = attend(theirs, None, window, step)
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-5)
    for left_kv, right_kv in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left_kv.data, right_kv.data, rtol=0, atol=0, equal_nan=True)


def test_the_same_sequences_stay_gathered_until_there_is_no_room() -> None:
    kvs, gatherer = some_kvs([5, 6, 7, 8]), Gatherer()
    seen = []
    for step in range(2 * singles.ROOM):
        gathered = gatherer.gather(chunks_of(kvs))
        seen.append(id(gathered))
        attend(kvs, gathered, None, step)
    assert [len(set(part)) for part in (seen[: singles.ROOM], seen[singles.ROOM :])] == [1, 1]
    assert seen[0] != seen[-1]


def test_what_is_no_next_token_is_gathered_anew() -> None:
    kvs, gatherer = some_kvs([5, 6, 7, 8, 9]), Gatherer()
    first = gatherer.gather(chunks_of(kvs[:4]))
    repeated = gatherer.gather(chunks_of(kvs[:4]))  # the pass failed, nothing was advanced
    others = gatherer.gather(chunks_of(kvs[1:]))
    for kv in kvs:
        kv.advance(1, "1")
    assert gatherer.gather([]) is None  # their KV is computed anew in between, in longer chunks
    after = gatherer.gather(chunks_of(kvs[1:]))
    assert len({id(one) for one in (first, repeated, others, after)}) == 4


def test_another_memory_in_a_sequences_place_is_seen() -> None:
    kvs, gatherer = some_kvs([5, 5, 5, 5]), Gatherer()
    first = gatherer.gather(chunks_of(kvs))
    attend(kvs, first, None, 0)
    kvs[2] = kvs[2].copy(6)
    assert gatherer.gather(chunks_of(kvs)) is not first


def test_few_or_long_sequences_are_not_gathered() -> None:
    long = singles.SHORT_BYTES // (SHAPE.token_bytes // SHAPE.layers)
    few = chunks_of(some_kvs([5] * (singles.FEW - 1)))
    assert Gatherer().gather(few) is None
    kv = some_kvs([5])[0]
    assert Gatherer().gather([*few, Chunk(kv, long, 1)]) is None
    assert Gatherer().gather([*few, Chunk(kv, 190, 1)]) is not None


def test_memory_of_ones_own_catches_up_when_it_is_read() -> None:
    ours, theirs, gatherer = some_kvs([5, 9, 5, 7]), some_kvs([5, 9, 5, 7]), Gatherer()
    for step in range(12):
        attend(ours, gatherer.gather(chunks_of(ours)), None, step)
        attend(theirs, None, None, step)
        if step == 3:  # in the middle: what follows is handed over all the same
            assert torch.equal(ours[1].copy(13).data[:, :, :, :13], theirs[1].data[:, :, :, :13])
            ours[2].reserve(300)
        if step == 6:
            ours[0].truncate(4)
            theirs[0].truncate(4)
    for left, right in zip(ours, theirs, strict=True):
        for mine, other in zip(left.layers, right.layers, strict=True):
            torch.testing.assert_close(mine[:, :, : left.length], other[:, :, : left.length], rtol=0, atol=0)


def test_sequences_that_are_left_alone_hold_no_copy_of_the_others() -> None:
    kvs, gatherer = some_kvs([5, 6, 7, 8]), Gatherer()
    held = ref(gatherer.gather(chunks_of(kvs)))
    assert held() is not None
    gatherer.gather([])
    assert held() is None
