"""How a batch is parted changes nothing: neither gradients nor what is clipped, and nobody else's terms."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gyre.trainer.pack.balance import micro_batches
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.restrict import restrict
from gyre.trainer.pack.split import split
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import LossSettings
from tests.trainer import oracle
from tests.trainer.builders import Shape
from tests.trainer.compare import TOLERANCE, Update, assert_true, distance, update
from tests.trainer.models import Kind
from tests.trainer.scenes import CLIP, Scene, scene
from tests.trainer.ways import WAYS

BROAD = Shape(executions=3, nodes=14)


def run(made: Scene, way: str, pieces: list[Piece]) -> Update:
    return update(
        WAYS[way](Policy(made.model)),
        made.model,
        made.packed,
        pieces,
        made.settings,
        made.old_T,
        made.reference_T,
    )


def assert_same(one: Update, other: Update) -> None:
    off, name = distance(one.gradients, other.gradients)
    assert off <= TOLERANCE, f"the gradient of {name} is {off:.2g} off"
    assert one.clipped_T.tolist() == other.clipped_T.tolist()
    assert one.loss == pytest.approx(other.loss, rel=1e-5, abs=1e-6)


def pieces_of(made: Scene, parts: list[Piece], execution: int) -> int:
    """How many pieces have targets of it."""
    of_T = made.packed.targets.execution_T
    return sum(bool((of_T[part.target_K] == execution).any()) for part in parts)


@pytest.mark.parametrize(
    ("way", "kind"),
    [("flat", "qwen3"), ("packed", "qwen3"), ("packed", "mixed"), ("dfs", "qwen3"), ("dfs", "hybrid")],
)
def test_an_execution_over_three_micro_batches(way: str, kind: Kind) -> None:
    made = scene(kind, 1, BROAD, LossSettings(**CLIP))
    forest = made.packed.forest
    parts = split(forest, len(forest) // 3)
    assert max(pieces_of(made, parts, execution) for execution in range(3)) >= 3

    whole = run(made, way, [forest])

    assert_same(run(made, way, parts), whole)
    assert 0 < sum(whole.clipped_T.tolist()) < len(whole.clipped_T)
    assert whole.clipped_T.tolist() == made.truth.value.clipped_T


def test_what_ranks_have_adds_up() -> None:
    """Each makes the objective from all targets; sums of gradients need no weights."""
    made = scene("qwen3", 2, BROAD)
    ranks = micro_batches(made.packed.forest, budget=12, ranks=3)
    assert len({len(pieces) for pieces in ranks}) > 1  # unequal

    assert_true(run(made, "dfs", [piece for pieces in ranks for piece in pieces]), made.truth)


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 7), budget=st.integers(1, 60))
def test_any_budget(seed: int, budget: int) -> None:
    made = scene("qwen3", seed, BROAD)

    assert_true(run(made, "packed", split(made.packed.forest, budget)), made.truth)


def test_a_dropped_execution_takes_only_its_own_with_it() -> None:
    """The sums of the others stay; what changes is the number that they are divided by."""
    made = scene("qwen3", 3, settings=LossSettings(**CLIP))
    count = len(made.trees)
    for dropped in range(count):
        kept_T = torch.from_numpy(made.packed.targets.execution_T != dropped)
        others = [tree for index, tree in enumerate(made.trees) if index != dropped]
        without = replace(
            made,
            packed=merge(others),
            trees=others,
            old_T=made.old_T[kept_T],
            reference_T=made.reference_T[kept_T],
        )
        left = run(without, "dfs", [without.packed.forest])

        keep_K = kept_T.numpy()[made.packed.forest.target_K]
        part = run(made, "dfs", [restrict(made.packed.forest, keep_K)])

        scaled = {name: gradient * count / (count - 1) for name, gradient in part.gradients.items()}
        assert distance(scaled, left.gradients)[0] <= TOLERANCE
        assert part.clipped_T[kept_T].tolist() == left.clipped_T.tolist()


def test_executions_without_advantage_need_not_be_computed() -> None:
    """They count among the executions all the same."""
    made = scene("qwen3", 4, Shape(executions=5, no_variance=0.5), LossSettings(**CLIP))
    keep_K = made.packed.targets.advantage_T[made.packed.forest.target_K] != 0
    assert 0 < np.count_nonzero(keep_K) < len(keep_K)

    found = run(made, "dfs", [restrict(made.packed.forest, keep_K)])

    assert distance(found.gradients, made.truth.gradients)[0] <= TOLERANCE


def test_the_order_of_executions_changes_nothing() -> None:
    made = scene("qwen3", 5)
    turned = made.trees[::-1]
    place: dict[int, list[float]] = {}
    for execution, value in zip(made.packed.targets.execution_T.tolist(), made.old_T.tolist(), strict=True):
        place.setdefault(execution, []).append(value)
    old_T = torch.tensor([value for execution in sorted(place, reverse=True) for value in place[execution]])

    other = replace(made, trees=turned, packed=merge(turned), old_T=old_T)

    assert distance(run(other, "dfs", [other.packed.forest]).gradients, made.truth.gradients)[0] <= TOLERANCE
    assert len(oracle.answers(turned)) == len(old_T)
