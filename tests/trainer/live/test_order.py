"""The order of tasks: by weight, without repetition within a round, and the same whenever it is asked."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from gyre.trainer.live.order import TaskOrder, Weighted


@given(st.lists(st.tuples(st.integers(1, 7), st.floats(0.1, 5)), min_size=1, max_size=3), st.integers(0, 9))
def test_a_list_is_gone_through_before_a_task_of_it_comes_again(
    shape: list[tuple[int, float]], seed: int
) -> None:
    lists = [
        Weighted([f"{name}{task}" for task in range(size)], weight)
        for name, (size, weight) in zip("abc", shape, strict=False)
    ]
    order = TaskOrder(lists, seed)
    drawn = [order[group] for group in range(40)]
    for name, (size, _) in zip("abc", shape, strict=False):
        own = [task for task in drawn if task[0] == name]
        for start in range(0, len(own), size):
            part = own[start : start + size]
            assert len(set(part)) == len(part)


@given(st.floats(0.05, 20))
def test_lists_are_drawn_by_their_weights(weight: float) -> None:
    order = TaskOrder([Weighted(["a"], weight), Weighted(["b"], 1.0)], 0)
    counts = Counter(order[group] for group in range(200))
    assert abs(counts["a"] - 200 * weight / (weight + 1)) <= 1


def test_a_task_does_not_depend_on_which_group_is_asked_first() -> None:
    lists = [Weighted(range(5)), Weighted(range(10, 13), 0.3)]
    forward = TaskOrder(lists, 3)
    drawn = [forward[group] for group in range(60)]
    assert TaskOrder(lists, 3)[59] == drawn[59]
    assert [TaskOrder(lists, 3)[group] for group in range(60)] == drawn
    assert drawn != [TaskOrder(lists, 4)[group] for group in range(60)]


def test_the_order_is_this_one() -> None:
    """A run that goes on with another version of NumPy must not find other tasks."""
    order = TaskOrder([Weighted(range(6))], 0)
    assert [order[group] for group in range(12)] == EXPECTED


EXPECTED = [3, 2, 1, 0, 4, 5, 4, 5, 3, 1, 0, 2]
