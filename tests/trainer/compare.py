"""An update by one of the passes, and how far it is from another one or from the truth.

Shapes: T targets of a batch, K of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from gyre.trainer.gspo import Objective
from gyre.trainer.pack.merge import Packed
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.run import TreePass
from gyre.trainer.settings import LossSettings
from tests.trainer import oracle

TOLERANCE = 1e-5
"""Relative, in fp32: of the loss to the sizes of its terms, of a gradient by L2 norm."""
SMALL = 1e-2
"""A tensor whose norm is a smaller part of the whole gradient's is compared with that part instead: what is
left of terms that cancel has their rounding errors, as keys have where a path is hardly longer than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    loss: float
    logprobs_T: torch.Tensor
    """fp32, by the pass itself."""
    clipped_T: torch.Tensor
    gradients: dict[str, torch.Tensor]


def update(
    run: TreePass,
    model: PreTrainedModel,
    packed: Packed,
    pieces: Sequence[Piece],
    settings: LossSettings,
    old_T: torch.Tensor,
    reference_T: torch.Tensor | None = None,
) -> Update:
    """As training does it: what the ratios are without gradient, then the pieces one after the other."""
    model.zero_grad(set_to_none=True)
    targets = packed.targets
    now_T = forward(run, packed, pieces)
    objective = Objective.of(
        targets, settings, old_T=old_T, now_T=now_T, reference_T=reference_T, device=torch.device("cpu")
    )
    loss = 0.0
    for piece in pieces:
        loss += run(piece, temperatures(packed, piece), objective.part(torch.from_numpy(piece.target_K))).loss
    count = len(targets.executions)
    return Update(
        loss=loss / count,
        logprobs_T=now_T,
        clipped_T=objective.clipped_T,
        gradients={name: gradient / count for name, gradient in oracle.gradients(model).items()},
    )


def forward(run: TreePass, packed: Packed, pieces: Sequence[Piece]) -> torch.Tensor:
    """(T,) log-probabilities; NaN where no piece has the target."""
    found_T = torch.full((len(packed.targets),), torch.nan)
    for piece in pieces:
        found_T[torch.from_numpy(piece.target_K)] = run(piece, temperatures(packed, piece)).logprobs_K
    return found_T


def temperatures(packed: Packed, piece: Piece) -> torch.Tensor:
    return torch.from_numpy(packed.targets.temperature_T[piece.target_K])


def distance(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> tuple[float, str]:
    """Of the parameter whose gradient is furthest off, relative to its size; and its name.

    A parameter that has a gradient on one side only has 0 on the other.
    """
    whole = torch.stack([gradient.norm() for gradient in wanted.values()]).norm().item()
    worst = (0.0, "")
    for name in {*found, *wanted}:
        one = found.get(name, torch.zeros(()))
        other = wanted.get(name, torch.zeros(()))
        size = max(other.norm().item(), SMALL * whole)
        off = (one - other).norm().item()
        worst = max(worst, (_relative(off, size), name))
    return worst


def loss_distance(found: Update, wanted: oracle.Truth) -> float:
    return _relative(abs(found.loss - wanted.value.loss.item()), wanted.value.scale)


def _relative(off: float, size: float) -> float:
    """What is no number is as far off as can be."""
    return math.inf if math.isnan(off) else off / size if size else off


def assert_true(found: Update, wanted: oracle.Truth, what: str = "", tolerance: float = TOLERANCE) -> None:
    """Loss and every gradient, to rounding."""
    off, name = distance(found.gradients, wanted.gradients)
    assert off <= tolerance, f"{what}: the gradient of {name} is {off:.2g} off"
    off = loss_distance(found, wanted)
    assert off <= tolerance, f"{what}: the loss is {off:.2g} off"


def wrong_by(found: Update, wanted: oracle.Truth) -> float:
    """How far the worse of loss and gradients is off."""
    return max(distance(found.gradients, wanted.gradients)[0], loss_distance(found, wanted))
