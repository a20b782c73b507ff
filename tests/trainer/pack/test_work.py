"""What a piece takes against its paths one by one, pieces for some targets, and what is no piece."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from gyre.trainer.pack.check import check_piece
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.paths import paths
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.restrict import restrict
from gyre.trainer.pack.split import split
from gyre.trainer.pack.work import Work, cost, measure
from tests.trainer.builders import Shape, context, random_trees, targets, tree
from tests.trainer.pack.test_merge import seeds, shapes
from tests.trainer.pack.whole import before, computed, same


@settings(deadline=None, max_examples=40)
@given(seeds, shapes)
def test_flat_is_all_paths(seed: int, shape: Shape) -> None:
    forest = merge(random_trees(seed, shape)).forest
    lengths, work = [len(path) for path in paths(forest)], measure(forest)
    assert (work.paths, work.longest_path, work.flat_tokens) == (len(lengths), max(lengths), sum(lengths))
    assert work.flat_pairs == sum(length * (length + 1) // 2 for length in lengths)
    assert work.pairs == sum(len(before(forest, token)) for token in range(len(forest)))


def test_work_of_one_prefix_and_two_branches_by_hand() -> None:
    nodes = [context(-1, 1, 2, 3), targets(0, 4, 5, 6), targets(0, 7, 8)]
    work = measure(merge([tree("a", nodes)]).forest)
    assert work == Work(
        tokens=6,
        targets=5,
        pairs=1 + 2 + 3 + 4 + 5 + 4,
        paths=2,
        flat_tokens=9,
        flat_pairs=25,
        longest_path=5,
    )
    assert work.shared == pytest.approx(1 / 3)
    assert cost(work.tokens, work.pairs, linear=10) == 79


def test_works_add_up_over_a_split() -> None:
    forest = merge(random_trees(1, Shape(executions=6))).forest
    whole, total = measure(forest), sum(map(measure, split(forest, 20)), Work())
    assert total.tokens - total.context == whole.tokens and total.context > 0
    assert (total.targets, total.paths) == (whole.targets, whole.paths)
    assert (total.flat_tokens, total.longest_path) == (whole.flat_tokens, whole.longest_path)
    assert Work().shared == 0


@settings(deadline=None, max_examples=60)
@given(seeds, shapes)
def test_a_piece_for_some_targets_is_the_forest_of_those(seed: int, shape: Shape) -> None:
    trees = random_trees(seed, shape)
    packed = merge(trees)
    kept = np.random.default_rng(seed).random(len(trees)) < 0.5
    part = restrict(packed.forest, kept[packed.targets.execution_T[packed.forest.target_K]])
    check_piece(part)
    assert same(part, merge([own for own, keep in zip(trees, kept, strict=True) if keep]).forest)
    found = computed(packed.forest)
    assert computed(part) == {k: found[k] for k in part.target_K.tolist()}


def _piece(**changes: Any) -> Piece:
    nodes = [context(-1, 1, 2), targets(0, 3, 4), targets(0, 5, 6)]
    return replace(merge([tree("a", nodes)]).forest, **changes)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"parent_N": np.array([-1, 0, 3, 1])}, "parent does not come before"),
        ({"parent_N": np.array([-1, 0, 1])}, "tokens differ in length"),
        ({"position_ids_N": np.arange(4)}, "position"),
        ({"tout_N": np.array([4, 4, 4, 4])}, "size of the subtree"),
        ({"tout_N": np.array([4, 4, 3, 5])}, "size of the subtree"),
        ({"source_K": np.array([1, 1, 2, 4])}, "not a token"),
        ({"source_K": np.array([-1, 1, 2, 3])}, "not a token"),
        ({"label_K": np.array([1, 2])}, "targets differ in length"),
        ({"target_K": np.array([0, 1, 2, 2])}, "twice"),
        ({"context": 5}, "context"),
    ],
)
def test_what_is_no_piece_says_why(changes: dict[str, Any], what: str) -> None:
    check_piece(_piece())
    with pytest.raises(ValueError, match=what):
        check_piece(_piece(**changes))


def test_a_subtree_in_two_places_is_no_piece() -> None:
    """Between a root and its child lies another root: sizes agree, places do not."""
    piece = Piece(
        input_ids_N=np.arange(4),
        position_ids_N=np.array([0, 0, 1, 1]),
        parent_N=np.array([-1, -1, 0, 1]),
        tout_N=np.array([2, 3, 3, 4]),
        source_K=np.array([2]),
        label_K=np.array([1]),
        target_K=np.array([0]),
    )
    with pytest.raises(ValueError, match="ends after its parent's"):
        check_piece(piece)
