"""Every update of a batch is what the oracle says it has to be, with the old policy of the batch's start."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import PreTrainedModel

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import (
    ClipLevel,
    Importance,
    LossSettings,
    OptimizerSettings,
    RatioForm,
    TrainSettings,
)
from gyre.trainer.update.learner import Learner, Network
from tests.trainer import oracle
from tests.trainer.builders import Shape, context, random_trees, with_logprobs
from tests.trainer.models import tiny_model
from tests.trainer.ways import WAYS

PARTS = 4
SHAPE = Shape(executions=8, groups=PARTS, nodes=8, no_variance=0.25)


def learner_of(model: PreTrainedModel, way: str, settings: TrainSettings) -> Learner:
    policy = Policy(model)
    network = Network(policy=policy, make=lambda _: WAYS[way](policy))
    return Learner(network, settings, total_updates=PARTS)


def norm(wanted: oracle.Truth) -> float:
    return torch.stack([gradient.norm() for gradient in wanted.gradients.values()]).norm().item()


@pytest.mark.parametrize(
    "loss",
    [
        LossSettings(clip_low=1e-2, clip_high=1e-2),
        LossSettings(ratio=RatioForm.EXECUTION, clip_level=ClipLevel.TRAJECTORY, clip_low=0.1, clip_high=0.1),
        LossSettings(clip_level=ClipLevel.TOKEN, importance=Importance.OFF),
    ],
)
@pytest.mark.parametrize("way", ["packed", "dfs"])
def test_updates_of_a_batch(way: str, loss: LossSettings) -> None:
    model = tiny_model()
    trees = random_trees(1, SHAPE)
    with torch.no_grad():
        old_T = oracle.logprobs(model, trees)
    noise_T = torch.randn(len(old_T), generator=torch.Generator().manual_seed(0))
    trees = with_logprobs(trees, (old_T + 0.5 * noise_T).tolist())
    settings = TrainSettings(
        updates_per_batch=PARTS, token_budget=20, loss=loss, optimizer=OptimizerSettings(lr=3e-3)
    )
    learner = learner_of(model, way, settings)
    start = copy.deepcopy(model)
    groups = [[tree for tree in trees if tree.group == f"group-{part}"] for part in range(PARTS)]
    batch = learner.begin(groups)
    clipped = 0
    for part, group in enumerate(groups):
        with torch.no_grad():
            old_T = oracle.logprobs(start, group)
        wanted = oracle.truth(copy.deepcopy(model), group, loss, old_T)

        report = learner.update(batch, part)

        assert report.grad_norm == pytest.approx(norm(wanted), rel=1e-5)
        assert report.loss == pytest.approx(wanted.value.loss.item(), abs=1e-5 * wanted.value.scale)
        assert report.executions == len(group)
        clipped += sum(wanted.value.clipped_T)
    assert clipped


def test_only_executions_without_targets_do_not_count() -> None:
    """Those without an advantage do: they are no part of the gradient, but of what it is divided by."""
    model = tiny_model()
    trees = random_trees(1, SHAPE)
    assert any(not tree.advantage for tree in trees)
    nothing = TrainTree(execution_id="nothing", advantage=1.0, nodes=[context(-1, 1, 2, 3)])
    with torch.no_grad():
        now_T = oracle.logprobs(model, trees)
    trees = with_logprobs(trees, now_T.tolist())
    wanted = oracle.truth(copy.deepcopy(model), trees, LossSettings(), now_T)
    learner = learner_of(model, "packed", TrainSettings(token_budget=20))

    report = learner.update(learner.begin([[nothing, *trees]]), 0)

    assert report.executions == len(trees)
    assert report.grad_norm == pytest.approx(norm(wanted), rel=1e-5)
