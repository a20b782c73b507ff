"""What `test_planted` makes its mistakes of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from gyre.trainer.data.tree import TrainNode, TrainTree
from gyre.trainer.pack.merge import Packed
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from tests.trainer import oracle
from tests.trainer.compare import Update, update
from tests.trainer.scenes import Scene


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
    """Each piece with a factor of its own."""

    run: TreePass
    factors: dict[int, float]
    """By identity of the piece."""

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        return Scaled(run=self.run, factor=self.factors[id(piece)])(piece, temperature_K, loss)


def as_if_alone(made: Scene, by: TreePass, piece: Piece) -> Update:
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


def added(made: Scene, parts: list[Update]) -> Update:
    names = {name for part in parts for name in part.gradients}
    zero = torch.zeros(())
    return replace(
        parts[0],
        loss=sum(part.loss for part in parts),
        gradients={name: sum((part.gradients.get(name, zero) for part in parts), zero) for name in names},
    )


def keys(trees: list[TrainTree]) -> list[oracle.Key]:
    return [
        (index, node, token)
        for index, tree in enumerate(trees)
        for node, one in enumerate(tree.nodes)
        if one.target is not None
        for token in range(len(one.token_ids))
    ]


def row_keys(index: int, tree: TrainTree) -> list[oracle.Key]:
    return [
        (index, node, token)
        for path in oracle.leaf_paths(tree)
        for node in path
        if tree.nodes[node].target is not None
        for token in range(len(tree.nodes[node].token_ids))
    ]


def flattened(tree: TrainTree) -> TrainTree:
    """A root for every trajectory, with all of its targets."""
    nodes: list[TrainNode] = []
    for path in oracle.leaf_paths(tree):
        for step, node in enumerate(path):
            nodes.append(replace(tree.nodes[node], parent=len(nodes) - 1 if step else -1))
    return replace(tree, nodes=nodes)


def leaves_below(made: Scene, target: int) -> int:
    """Trajectories that pass through it."""
    index, node, _ = keys(made.trees)[target]
    return sum(node in path for path in oracle.leaf_paths(made.trees[index]))


def with_all_targets(forest: Piece, part: Piece) -> Piece:
    """With every target whose source it has, found by the ids on the way to it."""
    paths = {ids_to(part, index): index for index in range(len(part))}
    found = [
        (paths[ids_to(forest, source)], label, target)
        for source, label, target in zip(
            forest.source_K.tolist(), forest.label_K.tolist(), forest.target_K.tolist(), strict=True
        )
        if ids_to(forest, source) in paths
    ]
    source_K, label_K, target_K = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return replace(part, source_K=source_K, label_K=label_K, target_K=target_K)


def ids_to(piece: Piece, index: int) -> tuple[int, ...]:
    ids: tuple[int, ...] = ()
    while index >= 0:
        ids = (int(piece.input_ids_N[index]), *ids)
        index = int(piece.parent_N[index])
    return ids
