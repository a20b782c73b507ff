"""The reader's version on one page: it runs, and it computes what the trainer computes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.merge import merge
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import LossSettings
from gyre.treebuilder.score import relative
from tests.trainer import compare, oracle
from tests.trainer.builders import context, targets, tree, with_logprobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "gspo_tree.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gspo_tree", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_trees(example: ModuleType) -> list[TrainTree]:
    """Its executions, a node for each token, in the order of its targets."""
    trees = []
    for e, advantage in enumerate(example.advantages().tolist()):
        paths = {ids[:end] for f, ids, _ in example.PATHS if f == e for end in range(1, len(ids) + 1)}
        index = {path: place for place, path in enumerate(sorted(paths))}
        nodes = [
            (targets if (e, path) in example.TARGETS else context)(index.get(path[:-1], -1), path[-1])
            for path in index
        ]
        trees.append(tree(f"run-{e}", nodes, advantage=advantage))
    return trees


def test_it_runs_saves_half_of_the_tokens_and_clips(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main()

    first, *updates, last = capsys.readouterr().out.splitlines()
    assert first == "89 tokens, 46 in the tree, 36 targets"
    assert len(updates) == example.UPDATES and last == "the tree's gradients were those of its trajectories"
    assert re.search(r"ratios of executions( 1\.000 ){5}", updates[0])
    clipped = [line.count("*") - 1 for line in updates]  # one is the legend's
    assert clipped[0] == 0 and 0 < clipped[-1] < len(example.EXECUTIONS)


def test_it_computes_what_the_trainer_does(example: ModuleType) -> None:
    """From old log-probabilities that put executions on both sides of both clips."""
    model = example.tiny_model()
    now_T = example.tree_logprobs(model)
    shift_E = torch.tensor([0.3, -0.1, -0.3, 0.1, -0.25])
    random = torch.Generator().manual_seed(0)
    noise_T = 0.05 * torch.randn(len(now_T), generator=random)
    old_T = now_T.detach() - shift_E[example.EXECUTION_T] - noise_T
    behaviour_T = old_T - torch.randn(len(now_T), generator=random)
    settings = LossSettings(clip_low=example.LOW, clip_high=example.HIGH, importance_cap=example.CAP)

    packed = merge(with_logprobs(as_trees(example), behaviour_T.tolist()))
    ours = compare.update(PackedPass(Policy(model)), model, packed, [packed.forest], settings, old_T)
    loss, _, clipped_E = example.gspo(now_T, old_T, behaviour_T)
    loss.backward()

    rewards = [reward for group, reward, _ in example.EXECUTIONS if group == "sum"]
    assert example.advantages()[:3].tolist() == pytest.approx(relative(rewards))
    assert len(packed.forest) == len(example.NODES)
    assert clipped_E.tolist() == [True, False, True, False, True]
    assert torch.equal(ours.clipped_T, clipped_E[example.EXECUTION_T])
    assert ours.loss == pytest.approx(loss.item(), rel=1e-5)
    off, name = compare.distance(oracle.gradients(model), ours.gradients)
    assert off <= 1e-5, f"the gradient of {name} is {off:.2g} off"
