"""How a batch is dealt into updates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.pack.merge import merge
from gyre.trainer.update.batch import Batch, by_execution, deal, in_order, number_of_parts
from tests.trainer.builders import context, random_trees, targets, tree


def groups(*sizes: int) -> list[list[TrainTree]]:
    return [
        [tree(f"{group}-{each}", [context(-1, 1), targets(0, 2)], group=str(group)) for each in range(size)]
        for group, size in enumerate(sizes)
    ]


def names(parts: list[list[TrainTree]]) -> list[list[str]]:
    return [[one.execution_id for one in part] for part in parts]


def test_groups_stay_whole_and_in_order() -> None:
    assert names(deal(groups(2, 1, 1, 2), 2)) == [["0-0", "0-1", "1-0"], ["2-0", "3-0", "3-1"]]


def test_with_fewer_groups_than_updates_executions_are_dealt() -> None:
    assert names(deal(groups(3, 1), 4)) == [["0-0"], ["0-1"], ["0-2"], ["1-0"]]


def test_with_fewer_executions_than_updates_there_are_fewer_updates() -> None:
    assert names(deal(groups(2), 4)) == [["0-0"], ["0-1"]]
    assert deal([], 4) == []


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_every_execution_is_in_one_part_and_no_part_is_empty(sizes: list[int], updates: int) -> None:
    given_groups = groups(*sizes)
    parts = deal(given_groups, updates)
    assert [one for part in names(parts) for one in part] == [
        one for group in names(given_groups) for one in group
    ]
    assert all(parts)
    assert len(parts) == number_of_parts(len(sizes), sum(sizes), updates)


def test_log_probabilities_are_kept_by_execution_and_come_back_in_any_order() -> None:
    trees = random_trees(3)
    packed = merge(trees)
    values_T = np.arange(len(packed.targets), dtype=np.float32)
    kept = by_execution(packed.targets, values_T)
    assert set(kept) == {one.name for one in trees}
    assert in_order(packed.targets, kept).tolist() == values_T.tolist()
    turned = merge(trees[::-1])
    expected = [value for one in trees[::-1] for value in kept[one.name].tolist()]
    assert in_order(turned.targets, kept).tolist() == expected


def test_what_no_update_needs_any_more_is_forgotten() -> None:
    batch = Batch(parts=deal(groups(1, 1), 2))
    batch.old = {"0-0": np.zeros(1, np.float32), "1-0": np.zeros(1, np.float32)}
    batch.forget(0)
    assert set(batch.old) == {"1-0"}


def test_an_execution_that_was_not_there_when_the_batch_began_is_named() -> None:
    packed = merge(random_trees(3))
    kept = by_execution(packed.targets, np.zeros(len(packed.targets), np.float32))
    first = packed.targets.executions[0]
    del kept[first]
    with pytest.raises(TrainError, match=f"no old log-probabilities of `{first}`"):
        in_order(packed.targets, kept)
