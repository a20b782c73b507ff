"""Mistakes that others made, each planted by hand: the comparison with the oracle has to see it from afar.

A mistake that sits in arrays is made in them and run through a real pass. One that sits in a pass is made in
a pass of a few lines (`dense.py`), which is exact without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from gyre.trainer.pack.balance import micro_batches
from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.split import split
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import TreePass
from gyre.trainer.settings import ClipLevel, LossSettings
from tests.trainer.builders import Shape
from tests.trainer.compare import Update, assert_true, update, wrong_by
from tests.trainer.dense import Dense, Forked
from tests.trainer.mistakes import (
    PerPiece,
    Scaled,
    added,
    as_if_alone,
    flattened,
    keys,
    leaves_below,
    row_keys,
    with_all_targets,
)
from tests.trainer.scenes import CLIP, Scene, scene

FAR = 1e-2
"""A thousand times what rounding is allowed."""
SEEDS = (4, 6, 7, 15)
"""Scenes in which some executions are clipped and some are not, and which split at branch points."""


def given(seed: int, kind: str = "qwen3") -> Scene:
    return scene(kind, seed, Shape(nodes=12), LossSettings(**CLIP))


def run(
    made: Scene,
    *,
    packed: Packed | None = None,
    pieces: list[Piece] | None = None,
    by: TreePass | None = None,
    settings: LossSettings | None = None,
) -> Update:
    packed = packed or made.packed
    return update(
        by or PackedPass(Policy(made.model)),
        made.model,
        packed,
        pieces or [packed.forest],
        settings or made.settings,
        made.old_T,
    )


def assert_seen(plant: Callable[[Scene], Update], kind: str = "qwen3") -> None:
    """In most scenes: in one it may happen to make no difference."""
    wrong = [wrong_by(plant(given(seed, kind)), given(seed, kind).truth) for seed in SEEDS]
    assert sum(off >= FAR for off in wrong) >= 3, wrong


def test_nothing_is_wrong_without_a_mistake() -> None:
    for seed in SEEDS[:2]:
        made = given(seed)
        assert_true(run(made), made.truth)
        assert_true(run(made, by=Dense(model=made.model)), made.truth)
        assert_true(run(made, by=Forked(model=made.model)), made.truth)
        assert_true(run(made, by=Scaled(run=PackedPass(Policy(made.model)), factor=1.0)), made.truth)
    for seed in SEEDS[:2]:
        made = given(seed, "mixed")
        assert_true(run(made, by=Dense(model=made.model)), made.truth)


# ------------------------------------------------------------------------------------------ what is counted


def test_a_target_counted_once_per_trajectory() -> None:
    """As flattened rows do: gradients of shared targets are multiples."""

    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        times_K = np.array([leaves_below(made, int(target)) for target in forest.target_K])
        again_k = np.repeat(np.arange(len(times_K)), times_K)
        twice = replace(
            forest,
            source_K=forest.source_K[again_k],
            label_K=forest.label_K[again_k],
            target_K=forest.target_K[again_k],
        )
        return run(made, pieces=[twice])

    assert_seen(plant)


def test_a_target_counted_once_per_trajectory_in_the_mean_as_well() -> None:
    """And |U_e| and s_e with them: what rows of their own come to."""

    def plant(made: Scene) -> Update:
        trees = [flattened(tree) for tree in made.trees]
        old = {key: float(value) for key, value in zip(keys(made.trees), made.old_T, strict=True)}
        rows = [key for index, tree in enumerate(made.trees) for key in row_keys(index, tree)]
        flat = replace(made, trees=trees, packed=merge(trees), old_T=torch.tensor([old[key] for key in rows]))
        return run(flat)

    assert_seen(plant)


def test_targets_of_context_counted_again() -> None:
    """A piece that computes the beginning of a path once more takes its targets for its own."""

    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        parts = split(forest, len(forest) // 3)
        assert any(part.context for part in parts)
        return run(made, pieces=[with_all_targets(forest, part) for part in parts])

    assert_seen(plant)


def test_an_advantage_of_another_execution() -> None:
    """Where two executions sampled at the same place, one target would do for both."""

    def plant(made: Scene) -> Update:
        targets = made.packed.targets
        first: dict[tuple[int, int], int] = {}
        forest = made.packed.forest
        advantage_T = targets.advantage_T.copy()
        places = zip(forest.source_K.tolist(), forest.label_K.tolist(), forest.target_K.tolist(), strict=True)
        for source, label, target in places:
            advantage_T[target] = targets.advantage_T[first.setdefault((source, label), target)]
        return run(made, packed=replace(made.packed, targets=replace(targets, advantage_T=advantage_T)))

    assert_seen(plant)


# --------------------------------------------------------------------------------------- where it is read off


def test_a_wrong_parent() -> None:
    """The first token of a later branch is read off the token before it in the piece."""

    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        place = {
            (int(parent), int(token)): index
            for index, (parent, token) in enumerate(zip(forest.parent_N, forest.input_ids_N, strict=True))
        }
        before = [
            place.get((int(source), int(label)), int(source) + 1) - 1
            for source, label in zip(forest.source_K, forest.label_K, strict=True)
        ]
        return run(made, pieces=[replace(forest, source_K=np.array(before, np.int64))])

    assert_seen(plant)


def test_a_branch_that_sees_the_one_before() -> None:
    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        whole_N = np.full_like(forest.tout_N, len(forest))
        return run(made, pieces=[replace(forest, tout_N=whole_N)], by=Dense(model=made.model))

    assert_seen(plant)


def test_positions_by_index() -> None:
    assert_seen(lambda made: run(made, by=Dense(model=made.model, by_index=True)))

    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        return run(made, pieces=[replace(forest, position_ids_N=np.arange(len(forest)))])

    assert_seen(plant)


def test_one_mask_for_all_kinds_of_layers() -> None:
    assert_seen(lambda made: run(made, by=Dense(model=made.model, one_mask=True)), kind="mixed")
    assert_seen(lambda made: run(made, by=Dense(model=made.model, one_mask=True)), kind="sliding")


def test_gradients_that_are_not_handed_back() -> None:
    """Keys and values of the path as constants: all values right, gradients of what comes before lost."""
    assert_seen(lambda made: run(made, by=Forked(model=made.model, hand_back=False)))


# ------------------------------------------------------------------------------------------------- the loss


def test_temperature_dropped() -> None:
    def plant(made: Scene) -> Update:
        targets = made.packed.targets
        ones_T = np.ones_like(targets.temperature_T)
        return run(made, packed=replace(made.packed, targets=replace(targets, temperature_T=ones_T)))

    assert_seen(plant)


def split_in_three(forest: Piece) -> list[list[Piece]]:
    return [[piece] for piece in split(forest, len(forest) // 3)]


def over_two_ranks(forest: Piece) -> list[list[Piece]]:
    return micro_batches(forest, budget=len(forest) // 3, ranks=2)


@pytest.mark.parametrize("shares", [split_in_three, over_two_ranks])
def test_normalised_per_share(shares: Callable[[Piece], list[list[Piece]]]) -> None:
    """Each micro-batch, or rank, divides by the executions that it has, and the mean is taken."""

    def plant(made: Scene) -> Update:
        targets = made.packed.targets
        parts = shares(made.packed.forest)
        factors: dict[int, float] = {}
        for own in parts:
            mine = {execution for piece in own for execution in targets.execution_T[piece.target_K].tolist()}
            for piece in own:
                factors[id(piece)] = len(targets.executions) / len(mine) / len(parts)
        by = PerPiece(run=PackedPass(Policy(made.model)), factors=factors)
        return run(made, pieces=[piece for own in parts for piece in own], by=by)

    assert_seen(plant)


def test_a_clip_per_token() -> None:
    per_token = LossSettings(clip_level=ClipLevel.TOKEN, **CLIP)
    assert_seen(lambda made: run(made, settings=per_token))


def test_a_clip_per_micro_batch() -> None:
    """s_e from what of the execution is in the piece at hand."""

    def plant(made: Scene) -> Update:
        parts = split(made.packed.forest, len(made.packed.forest) // 3)
        by = PackedPass(Policy(made.model))
        return added(made, [as_if_alone(made, by, part) for part in parts])

    assert_seen(plant)


def test_weights_without_a_cap() -> None:
    assert_seen(lambda made: run(made, settings=LossSettings(importance_cap=1e6, **CLIP)))


def replace_settings(**changes: float) -> LossSettings:
    return LossSettings(**CLIP | changes)
