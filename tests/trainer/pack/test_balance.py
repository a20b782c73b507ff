"""Pieces over ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.pack.balance import micro_batches
from gyre.trainer.pack.check import check_piece
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.split import split
from gyre.trainer.pack.work import cost, measure
from tests.trainer.builders import Shape, context, random_trees, targets, tree
from tests.trainer.pack.test_merge import seeds, shapes
from tests.trainer.pack.whole import computed, wanted


def _loads(plan: list[list[Piece]]) -> list[float]:
    works = [[measure(piece) for piece in own] for own in plan]
    return [sum(cost(work.tokens, work.pairs) for work in own) for own in works]


@settings(deadline=None, max_examples=60)
@given(seeds, shapes, st.integers(1, 120), st.integers(1, 4))
def test_ranks_have_each_target_once(seed: int, shape: Shape, budget: int, ranks: int) -> None:
    trees = random_trees(seed, shape)
    forest = merge(trees).forest
    plan = micro_batches(forest, budget=budget, ranks=ranks)
    assert len(plan) == ranks
    parts = [piece for own in plan for piece in own]
    assert computed(*parts) == dict(enumerate(wanted(trees)))
    assert sum(len(piece) - piece.context for piece in parts) == len(forest)
    for piece in parts:
        check_piece(piece)
        assert len(piece) <= budget or measure(piece).paths == 1


@settings(deadline=None, max_examples=60)
@given(seeds, shapes, st.integers(1, 120), st.integers(2, 4))
def test_more_ranks_never_take_longer_than_one(seed: int, shape: Shape, budget: int, ranks: int) -> None:
    forest = merge(random_trees(seed, shape)).forest
    (alone,) = _loads(micro_batches(forest, budget=budget, ranks=1))
    assert max(_loads(micro_batches(forest, budget=budget, ranks=ranks))) <= alone * (1 + 1e-9)


def test_one_rank_has_what_a_split_has() -> None:
    forest = merge(random_trees(5, Shape(executions=8))).forest
    (own,) = micro_batches(forest, budget=40, ranks=1)
    assert [piece.target_K.tolist() for piece in own] == [p.target_K.tolist() for p in split(forest, 40)]


def test_what_fits_one_piece_is_divided_where_that_pays() -> None:
    answers = [targets(0, 100 + index, *range(50)) for index in range(4)]
    plan = micro_batches(merge([tree("a", [context(-1, 1, 2), *answers])]).forest, budget=1000, ranks=2)
    assert [len(piece) for own in plan for piece in own] == [102, 102]


def test_a_long_prefix_with_short_branches_stays_whole() -> None:
    answers = [targets(0, 100 + index, 1, 2) for index in range(4)]
    plan = micro_batches(
        merge([tree("a", [context(-1, *range(900)), *answers])]).forest, budget=1000, ranks=2
    )
    assert [len(own) for own in plan] == [1, 0]


def test_a_rank_may_have_one_long_path_and_another_many_short_ones() -> None:
    trees = [tree("long", [context(-1, *range(300)), targets(0, 1, 2)])]
    trees += [tree(f"{i}", [context(-1, 1000 + i, *range(29)), targets(0, 1)]) for i in range(10)]
    plan = micro_batches(merge(trees).forest, budget=100, ranks=2)
    assert [[len(piece) for piece in own] for own in plan] == [[301], [30, 90, 90, 90]]


def test_long_paths_weigh_more_where_attention_does() -> None:
    trees = [tree("long", [context(-1, *range(400)), targets(0, 1)])]
    trees += [tree(f"{i}", [context(-1, 1000 + i, *range(199)), targets(0, 1)]) for i in range(4)]
    forest = merge(trees).forest
    by_tokens = micro_batches(forest, budget=400, ranks=2, linear=1e9)
    by_pairs = micro_batches(forest, budget=400, ranks=2, linear=0)
    assert [sum(map(len, own)) for own in by_tokens] == [600, 600]
    assert [sum(map(len, own)) for own in by_pairs] == [400, 800]


def test_the_costliest_is_dealt_out_first() -> None:
    trees = [tree(f"{i}", [context(-1, i, *range(99)), targets(0, 1)]) for i in range(16)]
    trees.append(tree("long", [context(-1, *range(1000, 1400)), targets(0, 1)]))
    plan = micro_batches(merge(trees).forest, budget=400, ranks=2, linear=0)
    assert sorted(sum(map(len, own)) for own in plan) == [400, 1600]


def test_tokens_far_from_their_root_look_at_more() -> None:
    deep = [context(-1, *range(300)), targets(0, *range(500, 601)), targets(0, *range(700, 801))]
    trees = [tree("deep", deep)]
    trees += [tree(f"{i}", [context(-1, 1000 + i, *range(199)), targets(0, 1)]) for i in range(4)]
    plan = micro_batches(merge(trees).forest, budget=500, ranks=2, linear=0)
    assert sorted(sum(map(len, own)) for own in plan) == [500, 800]


@pytest.mark.parametrize("part", [3, 20])
def test_ranks_take_little_more_than_their_share(part: int) -> None:
    """Of what one rank takes for all of it; 1.07 at most of 24 such batches, mean 1.02."""
    for seed in range(4):
        forest = merge(random_trees(seed, Shape(executions=40, nodes=9, longest=40))).forest
        budget = len(forest) // part
        (alone,) = _loads(micro_batches(forest, budget=budget, ranks=1))
        for ranks in (2, 4):
            plan = micro_batches(forest, budget=budget, ranks=ranks)
            assert max(_loads(plan)) <= 1.1 * alone / ranks
            assert all(len(part) <= budget or measure(part).paths == 1 for own in plan for part in own)


def test_nothing_is_divided_into_nothing() -> None:
    assert micro_batches(merge([]).forest, budget=10, ranks=3) == [[], [], []]
