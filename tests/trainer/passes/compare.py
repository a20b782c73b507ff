"""Two passes over one piece, side by side."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.pack.piece import Bools, Ints, Piece
from gyre.trainer.passes.run import PassOutput, TreePass
from tests.trainer.builders import Shape, random_trees
from tests.trainer.oracle import gradients


def batch(seed: int, **shape: int) -> tuple[Packed, torch.Tensor]:
    """Random trees in one piece, and the temperatures of its targets."""
    packed = merge(random_trees(seed, Shape(**shape)))
    return packed, torch.from_numpy(packed.targets.temperature_T[packed.forest.target_K])


def loss_part(logprobs_k: torch.Tensor, which_k: torch.Tensor) -> torch.Tensor:
    """Every target weighs something else, and its derivative depends on its value."""
    weight_k = torch.cos(which_k.float() * 1.7 + 0.3)
    return (weight_k * (logprobs_k * 0.2).exp()).sum()


def trained(
    model: PreTrainedModel, tree_pass: TreePass, packed: Packed, temperature_K: torch.Tensor
) -> tuple[PassOutput, dict[str, torch.Tensor]]:
    """The output and all gradients of one pass."""
    model.zero_grad(set_to_none=True)
    output = tree_pass(packed.forest, temperature_K, loss_part)
    return output, gradients(model)


def difference(given: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Of the tensor that differs most: relative L2 norm. Never per element: small ones are all noise."""
    assert given.keys() == wanted.keys()
    return max(
        float((given[name] - wanted[name]).norm() / wanted[name].norm().clamp(min=1e-12)) for name in wanted
    )


def dense(piece: Piece, window: int | None) -> Bools:
    """(N, N): what each token sees, by walking up from it."""
    seen_NN = np.zeros((len(piece), len(piece)), dtype=bool)
    for query in range(len(piece)):
        at, steps = query, 0
        while at >= 0 and (window is None or steps < window):
            seen_NN[query, at] = True
            at, steps = int(piece.parent_N[at]), steps + 1
    return seen_NN


def forest(seed: int, tokens: int) -> Piece:
    """Runs of up to 200 tokens that begin anywhere on the path before, or a root of their own."""
    rng = np.random.default_rng(seed)
    parents: list[int] = []
    while len(parents) < tokens:
        at = len(parents) - 1
        for _ in range(int(rng.integers(0, at + 2)) if rng.random() < 0.7 else 0):
            at = parents[at] if at >= 0 else at
        for _ in range(int(rng.integers(1, 200))):
            parents.append(at)
            at = len(parents) - 1
    return from_parents(np.array(parents[:tokens]))


def from_parents(parent_N: Ints) -> Piece:
    """In depth-first order; every token is a source."""
    count = len(parent_N)
    depth_N = np.zeros(count, dtype=np.int64)
    tout_N = np.arange(1, count + 1)
    for index, parent in enumerate(parent_N.tolist()):
        depth_N[index] = depth_N[parent] + 1 if parent >= 0 else 0
    for index in reversed(range(count)):
        if parent_N[index] >= 0:
            tout_N[parent_N[index]] = max(tout_N[parent_N[index]], tout_N[index])
    index_N = np.arange(count)
    return Piece(
        input_ids_N=index_N % 97,
        position_ids_N=depth_N,
        parent_N=parent_N,
        tout_N=tout_N,
        source_K=index_N,
        label_K=index_N * 31 % 97,
        target_K=index_N,
    )
