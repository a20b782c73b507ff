"""Batches: every group once an epoch, in an order that only the seed decides."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.data.order import batches
from gyre.trainer.data.read import Group
from gyre.trainer.settings import TrainSettings

SEEDS = st.integers(0, 1 << 40)


def order(count: int, size: int = 1, seed: int = 0, epoch: int = 0) -> list[list[str]]:
    groups = [Group(name=str(number), members=()) for number in range(count)]
    found = batches(groups, TrainSettings(groups_per_batch=size, seed=seed), epoch)
    return [[group.name for group in batch] for batch in found]


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 9), SEEDS, st.integers(0, 99))
def test_each_group_is_in_one_batch(count: int, size: int, seed: int, epoch: int) -> None:
    found = order(count, size, seed, epoch)
    assert sorted(int(name) for batch in found for name in batch) == list(range(count))
    assert all(len(batch) == size for batch in found[:-1])
    assert all(0 < len(batch) <= size for batch in found[-1:])


def test_the_order_is_this_one_on_any_machine() -> None:
    assert order(8, 3, seed=7) == [["6", "3", "4"], ["0", "2", "7"], ["5", "1"]]


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    found = {str(order(12, seed=seed, epoch=epoch)) for seed in range(4) for epoch in range(4)}
    assert len(found) == 16
    assert order(12, 1, 3, 2) == order(12, 1, 3, 2)


def test_the_size_of_a_batch_does_not_change_the_order() -> None:
    assert [*chain(*order(10, 3))] == [*chain(*order(10, 4))]
