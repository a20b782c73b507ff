"""A hundred updates by tree and by flat end at the same weights: rounding does not grow into a difference.

Four updates a batch, so that ratios move away from 1 and executions get clipped. At the learning rates of
practice a hundred updates move weights by so little that any two runs agree: here it is a thousand times as
high, and what is compared is the distance between two runs with the distance that they moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import LossSettings, OptimizerSettings, TrainSettings
from gyre.trainer.update.learner import Learner, Network
from gyre.trainer.update.report import UpdateReport
from tests.trainer import oracle
from tests.trainer.builders import Shape, random_trees, with_logprobs
from tests.trainer.models import Kind, tiny_model
from tests.trainer.ways import WAYS, Make

PARTS = 4
"""Updates of a batch; a group each."""
SHAPE = Shape(executions=8, groups=PARTS, nodes=5, missing=0.0)
CLIP = LossSettings(clip_low=3e-2, clip_high=4e-2)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def batches(kind: Kind, count: int) -> list[list[list[TrainTree]]]:
    """Groups of executions, recorded near the model that training starts from."""
    model = tiny_model(kind)
    found = []
    for seed in range(count):
        trees = random_trees(1000 + seed, SHAPE)
        with torch.no_grad():
            now_T = oracle.logprobs(model, trees)
        noise_T = 0.3 * torch.randn(len(now_T), generator=torch.Generator().manual_seed(seed))
        trees = with_logprobs(trees, (now_T + noise_T).tolist())
        found.append([[tree for tree in trees if tree.group == f"group-{part}"] for part in range(PARTS)])
    return found


def train(
    kind: Kind, make: Make, groups: Sequence[Sequence[Sequence[TrainTree]]], budget: int
) -> tuple[torch.Tensor, list[UpdateReport]]:
    """The weights at the end."""
    model = tiny_model(kind)
    policy = Policy(model)
    settings = TrainSettings(
        updates_per_batch=PARTS,
        token_budget=budget,
        loss=CLIP,
        optimizer=OptimizerSettings(lr=1e-3),
    )
    network = Network(policy=policy, make=lambda _: make(policy))
    learner = Learner(network, settings, total_updates=PARTS * len(groups))
    reports = []
    for batch in groups:
        started = learner.begin(batch)
        reports += [learner.update(started, part) for part in range(PARTS)]
    return weights(model), reports


def check(kind: Kind, ways: dict[str, int], count: int) -> None:
    groups = batches(kind, count)
    start = weights(tiny_model(kind))
    flat, reports = train(kind, WAYS["flat"], groups, 1 << 20)
    moved = (flat - start).norm().item()
    assert moved > 0.2
    assert any(report.objective and report.objective.clipped.targets_high for report in reports)
    for way, budget in ways.items():
        tree, _ = train(kind, WAYS[way], groups, budget)
        apart = (tree - flat).norm().item()
        assert apart <= 1e-4 * moved, f"{way}: {apart / moved:.2g} of the distance moved"


def test_a_few_updates() -> None:
    check("qwen3", {"dfs": 16, "packed": 1 << 20}, count=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "mixed", "hybrid"])
def test_a_hundred_updates(kind: Kind) -> None:
    ways = {"dfs": 1 << 20, "dfs, computed twice": 16}
    check(kind, ways if kind == "hybrid" else ways | {"packed": 1 << 20, "packed in tiles": 16}, count=25)
