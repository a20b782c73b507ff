"""Batches of bare log-probabilities, and the loss of an update over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from gyre.trainer.gspo import Objective
from gyre.trainer.pack.piece import Targets
from gyre.trainer.settings import LossSettings

CPU = torch.device("cpu")


def batch(
    *executions: Sequence[float],
    behaviour: Sequence[float] | None = None,
    trajectory: Sequence[int] | None = None,
) -> Targets:
    """Executions by the advantages of their targets, all sampled by a policy that is not known."""
    sizes = [len(advantages) for advantages in executions]
    execution_T = np.repeat(np.arange(len(sizes)), sizes)
    trajectory_T = execution_T if trajectory is None else np.array(trajectory)
    count = sum(sizes)
    return Targets(
        execution_T=execution_T,
        trajectory_T=trajectory_T,
        weight_T=np.repeat(1 / np.array(sizes, np.float64), sizes),
        advantage_T=np.array([one for advantages in executions for one in advantages], np.float64),
        behaviour_T=np.array([math.nan] * count if behaviour is None else behaviour, np.float32),
        temperature_T=np.ones(count, np.float32),
        version_T=np.full(count, -1),
        versions=(),
        executions=tuple(f"run-{index}" for index in range(len(sizes))),
        trajectories=int(trajectory_T.max(initial=-1)) + 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Loss and its derivative by each log-probability, not divided by E."""

    loss: float
    gradient_T: torch.Tensor


def update(
    of: Targets,
    loss: LossSettings,
    now: Sequence[float] | torch.Tensor,
    old: Sequence[float] | torch.Tensor | None,
    reference: Sequence[float] | torch.Tensor | None = None,
    pieces: Sequence[Sequence[int]] | None = None,
) -> Update:
    """In pieces, each with an objective of its own, as ranks have it, and each in two parts."""
    now_T = torch.as_tensor(now, dtype=torch.float32)
    old_T = None if old is None else torch.as_tensor(old, dtype=torch.float32)
    reference_T = None if reference is None else torch.as_tensor(reference, dtype=torch.float32)
    leaf_T = now_T.clone().requires_grad_()
    total = 0.0
    for piece in [range(len(of))] if pieces is None else pieces:
        objective = Objective.of(of, loss, old_T=old_T, now_T=now_T, reference_T=reference_T, device=CPU)
        target_K = torch.tensor(list(piece), dtype=torch.int64)
        part = objective.part(target_K)
        for which_k in torch.arange(len(target_K)).split(max(1, len(target_K) // 2)):
            term = part(leaf_T[target_K[which_k]], which_k)
            term.backward()
            total += term.item()
    return Update(loss=total, gradient_T=torch.zeros(len(of)) if leaf_T.grad is None else leaf_T.grad)


def near(values: Sequence[float]) -> object:
    return pytest.approx(list(values), rel=1e-5, abs=1e-7)
