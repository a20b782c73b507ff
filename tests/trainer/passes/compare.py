"""Two passes over one piece, side by side."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from gyre.trainer.pack.merge import Packed, merge
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
