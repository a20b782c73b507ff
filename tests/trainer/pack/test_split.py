"""A forest in pieces under a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.pack.bins import fill_bins
from gyre.trainer.pack.check import check_piece
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.segments import segments
from gyre.trainer.pack.split import split
from gyre.trainer.pack.work import measure
from tests.trainer.builders import Shape, context, random_trees, targets, tree
from tests.trainer.pack.test_merge import seeds, shapes
from tests.trainer.pack.whole import before, computed, wanted


@settings(deadline=None, max_examples=80)
@given(seeds, shapes, st.integers(1, 120))
def test_pieces_have_each_target_once_and_fit(seed: int, shape: Shape, budget: int) -> None:
    trees = random_trees(seed, shape)
    forest = merge(trees).forest
    parts = split(forest, budget)
    assert computed(*parts) == dict(enumerate(wanted(trees)))
    for part in parts:
        check_piece(part)
        assert len(part) <= budget or measure(part).paths == 1


@settings(deadline=None, max_examples=60)
@given(seeds, shapes, st.integers(1, 120))
def test_context_is_what_pieces_before_have(seed: int, shape: Shape, budget: int) -> None:
    forest = merge(random_trees(seed, shape)).forest
    seen: set[tuple[int, ...]] = set()
    for part in split(forest, budget):
        own = {before(part, index) for index in range(len(part))}
        assert part.context == len(own & seen)
        sources = {before(part, source) for source in part.source_K.tolist()}
        assert not sources & seen
        seen |= own
    assert len(seen) == len(forest)


@settings(deadline=None, max_examples=40)
@given(seeds, shapes)
def test_what_fits_is_one_piece(seed: int, shape: Shape) -> None:
    forest = merge(random_trees(seed, shape)).forest
    (part,) = split(forest, len(forest))
    assert part.context == 0 and part.target_K.tolist() == forest.target_K.tolist()
    assert part.tout_N.tolist() == forest.tout_N.tolist()


def test_splits_of_small_trees_are_nearly_always_the_best_there_are() -> None:
    """2600 such trees: 99.9 % have the fewest tokens, the worst has 1.034 times as many."""
    ratios = []
    for seed in range(120):
        forest = merge(random_trees(seed, Shape(executions=2, nodes=6, roots=2))).forest
        if sum(not node.children for node in segments(forest)) > 6:
            continue
        budget = int(np.random.default_rng(seed).integers(1, len(forest) + 1))
        parts = split(forest, budget)
        ratios.append(sum(map(len, parts)) / _fewest(forest, budget))
    assert len(ratios) > 40 and min(ratios) >= 1
    assert max(ratios) <= 1.05 and np.mean(ratios) <= 1.002


def _fewest(forest: Piece, budget: int) -> int:
    """Tokens of the best split, of all ways in which leaves can go together."""
    ends = [node.end - 1 for node in segments(forest) if not node.children]
    paths = {end: before(forest, end) for end in ends}

    def tokens(group: Sequence[int]) -> int:
        return len({paths[end][: size + 1] for end in group for size in range(len(paths[end]))})

    return min(
        sum(map(tokens, groups))
        for groups in _partitions(ends)
        if all(len(group) == 1 or tokens(group) <= budget for group in groups)
    )


def _partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in _partitions(items[1:]):
        yield [[items[0]], *rest]
        for index, group in enumerate(rest):
            yield [*rest[:index], [items[0], *group], *rest[index + 1 :]]


def _star(prefix: int, branches: Sequence[int]) -> Piece:
    """A prompt and answers; an answer of n tokens takes n - 1, as its last is a label only."""
    answers = [targets(0, 100 + index, *range(size)) for index, size in enumerate(branches)]
    return merge([tree("a", [context(-1, *range(prefix)), *answers])]).forest


def test_branches_that_fit_together_share_their_prefix_again() -> None:
    parts = split(_star(10, [6, 5, 4, 3, 2]), 20)
    assert sorted(map(len, parts)) == [20, 20]
    assert [part.context for part in parts] == [0, 10]


def test_first_tokens_of_all_branches_are_targets_of_the_first_piece() -> None:
    parts = split(_star(3, [4, 4]), 7)
    assert [(part.source_K == 2).sum() for part in parts] == [2, 0]


def test_a_path_over_the_budget_is_alone() -> None:
    parts = split(_star(3, [50, 2, 2]), 10)
    assert [len(part) for part in parts] == [53, 7]


def test_small_trees_share_a_piece_up_to_the_budget() -> None:
    trees = [tree(f"{i}", [context(-1, i, 1, 2), targets(0, 1, 2)]) for i in range(7)]
    parts = split(merge(trees).forest, 12)
    assert [len(part) for part in parts] == [4, 12, 12] and not any(part.context for part in parts)


def test_targets_may_come_in_any_order() -> None:
    trees = random_trees(4, Shape(executions=6))
    forest = merge(trees).forest
    order_K = np.random.default_rng(0).permutation(len(forest.source_K))
    shuffled = replace(
        forest,
        source_K=forest.source_K[order_K],
        label_K=forest.label_K[order_K],
        target_K=forest.target_K[order_K],
    )
    parts = split(shuffled, 20)
    assert len(parts) > 2 and computed(*parts) == dict(enumerate(wanted(trees)))


def test_a_piece_is_the_same_each_time() -> None:
    forest = merge(random_trees(3, Shape(executions=6))).forest
    one, other = split(forest, 30), split(forest, 30)
    assert [part.target_K.tolist() for part in one] == [part.target_K.tolist() for part in other]


def test_nothing_has_no_pieces() -> None:
    assert split(merge([]).forest, 10) == []


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(1, 40), max_size=12), st.integers(-3, 50))
def test_bins_hold_each_thing_once_and_no_two_could_be_one(sizes: list[int], capacity: int) -> None:
    bins = fill_bins(sizes, capacity)
    assert sorted(index for held in bins for index in held) == list(range(len(sizes)))
    loads = sorted(sum(sizes[index] for index in held) for held in bins)
    assert all(load <= capacity or len(held) == 1 for held in bins for load in [sum(sizes[i] for i in held)])
    assert len(loads) < 2 or loads[0] + loads[1] > capacity


def test_bins_are_filled_where_taking_the_largest_first_leaves_gaps() -> None:
    sizes = [5, 4, 4, 3, 2, 2]
    assert sorted(sum(sizes[index] for index in held) for held in fill_bins(sizes, 10)) == [10, 10]


@pytest.mark.parametrize(("things", "largest"), [(300, 400), (1000, 400), (3000, 4)])
def test_many_things_fill_nearly_all_of_their_bins(things: int, largest: int) -> None:
    sizes = np.random.default_rng(0).integers(1, largest, things).tolist()
    assert len(fill_bins(sizes, 1000)) == -(-sum(sizes) // 1000)
