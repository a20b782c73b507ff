"""Mistakes that others made, each planted by hand: the comparison with the oracle has to see it from afar.

A mistake that sits in arrays is made in them and run through a real pass. One that sits in a pass is made in
a pass of a few lines (`dense.py`), which is exact without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from gyre.trainer.data.tree import TrainNode, TrainTree
from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.split import split
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from gyre.trainer.settings import ClipLevel, LossSettings
from tests.trainer import oracle
from tests.trainer.builders import Shape
from tests.trainer.compare import Update, assert_true, update, wrong_by
from tests.trainer.dense import Dense, Forked
from tests.trainer.scenes import CLIP, Scene, scene

FAR = 1e-3
"""A hundred times what rounding is allowed."""
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
    for seed in SEEDS:
        made = given(seed)
        assert_true(run(made), made.truth)
        assert_true(run(made, by=Dense(model=made.model)), made.truth)
        assert_true(run(made, by=Forked(model=made.model)), made.truth)
        assert_true(run(made, by=Scaled(run=PackedPass(Policy(made.model)), factor=1.0)), made.truth)
    for seed in SEEDS:
        made = given(seed, "mixed")
        assert_true(run(made, by=Dense(model=made.model)), made.truth)


# ------------------------------------------------------------------------------------------ what is counted


def test_a_target_counted_once_per_trajectory() -> None:
    """As flattened rows do: gradients of shared targets are multiples."""

    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        times_K = np.array([_leaves_below(made, int(target)) for target in forest.target_K])
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
        trees = [_flattened(tree) for tree in made.trees]
        old = {key: float(value) for key, value in zip(_keys(made.trees), made.old_T, strict=True)}
        rows = [key for index, tree in enumerate(made.trees) for key in _row_keys(index, tree)]
        flat = replace(made, trees=trees, packed=merge(trees), old_T=torch.tensor([old[key] for key in rows]))
        return run(flat)

    assert_seen(plant)


def test_targets_of_context_counted_again() -> None:
    """A piece that computes the beginning of a path once more takes its targets for its own."""

    def plant(made: Scene) -> Update:
        forest = made.packed.forest
        parts = split(forest, len(forest) // 3)
        assert any(part.context for part in parts)
        return run(made, pieces=[_greedy(forest, part) for part in parts])

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


def test_normalised_per_micro_batch() -> None:
    """Or per rank: each divides by the executions that it has, and the mean is taken."""

    def plant(made: Scene) -> Update:
        targets, forest = made.packed.targets, made.packed.forest
        parts = split(forest, len(forest) // 3)
        by = PackedPass(Policy(made.model))
        own = [len(set(targets.execution_T[part.target_K].tolist())) or 1 for part in parts]
        factors = [len(targets.executions) / count / len(parts) for count in own]
        return run(
            made, pieces=parts, by=PerPiece(run=by, factors=dict(zip(map(id, parts), factors, strict=True)))
        )

    assert_seen(plant)


def test_a_clip_per_token() -> None:
    per_token = LossSettings(clip_level=ClipLevel.TOKEN, **CLIP)
    assert_seen(lambda made: run(made, settings=per_token))


def test_a_clip_per_micro_batch() -> None:
    """s_e from what of the execution is in the piece at hand."""

    def plant(made: Scene) -> Update:
        parts = split(made.packed.forest, len(made.packed.forest) // 3)
        by = PackedPass(Policy(made.model))
        return _sum(made, [_alone(made, by, part) for part in parts])

    assert_seen(plant)


def test_weights_without_a_cap() -> None:
    open_end = replace_settings(importance_cap=1e6)
    assert_seen(lambda made: run(made, settings=open_end))


def replace_settings(**changes: float) -> LossSettings:
    return LossSettings(**CLIP | changes)


# ------------------------------------------------------------------------------------------------- the means


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A pass whose gradients are multiplied."""

    run: TreePass
    factor: float

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        if loss is None:
            return self.run(piece, temperature_K)
        return self.run(
            piece, temperature_K, lambda logprobs_k, which_k: self.factor * loss(logprobs_k, which_k)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerPiece:
    run: TreePass
    factors: dict[int, float]
    """By identity of the piece."""

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        return Scaled(run=self.run, factor=self.factors[id(piece)])(piece, temperature_K, loss)


def _alone(made: Scene, by: TreePass, piece: Piece) -> Update:
    """A piece as if it were the batch."""
    targets = made.packed.targets
    own_T = np.sort(piece.target_K)
    kept = replace(
        targets,
        execution_T=targets.execution_T[own_T],
        trajectory_T=targets.trajectory_T[own_T],
        weight_T=targets.weight_T[own_T],
        advantage_T=targets.advantage_T[own_T],
        behaviour_T=targets.behaviour_T[own_T],
        temperature_T=targets.temperature_T[own_T],
        version_T=targets.version_T[own_T],
    )
    own = replace(piece, target_K=np.searchsorted(own_T, piece.target_K))
    return update(by, made.model, Packed(forest=own, targets=kept), [own], made.settings, made.old_T[own_T])


def _sum(made: Scene, parts: list[Update]) -> Update:
    names = {name for part in parts for name in part.gradients}
    zero = torch.zeros(())
    return replace(
        parts[0],
        loss=sum(part.loss for part in parts),
        gradients={name: sum((part.gradients.get(name, zero) for part in parts), zero) for name in names},
    )


def _keys(trees: list[TrainTree]) -> list[oracle.Key]:
    return [
        (index, node, token)
        for index, tree in enumerate(trees)
        for node, one in enumerate(tree.nodes)
        if one.target is not None
        for token in range(len(one.token_ids))
    ]


def _row_keys(index: int, tree: TrainTree) -> list[oracle.Key]:
    return [
        (index, node, token)
        for path in oracle.leaf_paths(tree)
        for node in path
        if tree.nodes[node].target is not None
        for token in range(len(tree.nodes[node].token_ids))
    ]


def _flattened(tree: TrainTree) -> TrainTree:
    """A root for every trajectory, with all of its targets."""
    nodes: list[TrainNode] = []
    for path in oracle.leaf_paths(tree):
        for step, node in enumerate(path):
            nodes.append(replace(tree.nodes[node], parent=len(nodes) - 1 if step else -1))
    return replace(tree, nodes=nodes)


def _leaves_below(made: Scene, target: int) -> int:
    """Trajectories that pass through it."""
    index, node, _ = _keys(made.trees)[target]
    return sum(node in path for path in oracle.leaf_paths(made.trees[index]))


def _greedy(forest: Piece, part: Piece) -> Piece:
    """With every target whose source it has, found by the ids on the way to it."""
    paths = {_path(part, index): index for index in range(len(part))}
    found = [
        (paths[_path(forest, source)], label, target)
        for source, label, target in zip(
            forest.source_K.tolist(), forest.label_K.tolist(), forest.target_K.tolist(), strict=True
        )
        if _path(forest, source) in paths
    ]
    source_K, label_K, target_K = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return replace(part, source_K=source_K, label_K=label_K, target_K=target_K)


def _path(piece: Piece, index: int) -> tuple[int, ...]:
    ids: tuple[int, ...] = ()
    while index >= 0:
        ids = (int(piece.input_ids_N[index]), *ids)
        index = int(piece.parent_N[index])
    return ids
