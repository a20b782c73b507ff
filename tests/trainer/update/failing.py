"""Processes of which one fails: `python -m tests.trainer.update.failing FOLDER WHAT PASS`.

WHAT is `nothing`, where memory ends, `forward` or `backward`, or `error`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import Device, OptimizerSettings, TrainSettings
from gyre.trainer.update.learner import Learner, Network
from gyre.trainer.update.processes import start
from gyre.trainer.update.ranks import Ranks
from tests.trainer.builders import Shape, random_trees
from tests.trainer.models import tiny_model
from tests.trainer.update.shared import a_pass

torch.set_num_threads(1)


class Fault:
    """Comes once, in the middle of a layer, when that is computed with gradients for the second time."""

    def __init__(self, policy: Policy, what: str) -> None:
        self._what = what
        self._calls = 0
        policy.model.get_decoder().layers[1].mlp.register_forward_hook(self._forward)

    def _forward(self, module: torch.nn.Module, args: object, output: torch.Tensor) -> None:
        if output.requires_grad:
            self._calls += 1
            if self._calls == 2 and self._what == "backward":
                output.register_hook(self._fail)
            elif self._calls == 2:
                self._fail(output)

    def _fail(self, tensor: torch.Tensor) -> None:
        raise ArithmeticError("as planted") if self._what == "error" else MemoryError


def updated(name: str, what: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Weights after two updates; the first one is disturbed on the last process."""
    policy = Policy(tiny_model())
    if what != "nothing" and ranks.rank == ranks.size - 1:
        Fault(policy, what)
    settings = TrainSettings(token_budget=40, updates_per_batch=2, optimizer=OptimizerSettings(lr=1e-3))
    network = Network(policy=policy, make=lambda budget: a_pass(policy, name))
    ranks.shard(policy, alike=name != "dfs")
    learner = Learner(network, settings, total_updates=10, ranks=ranks)
    trees = random_trees(3, Shape(executions=10, missing=1.0))
    batch = learner.begin([trees[:6], trees[6:]])
    for part in range(2):
        learner.update(batch, part)
    assert learner.progress.token_budget == (20 if what in ("forward", "backward") else 40)
    return {name: ranks.whole(own) for name, own in learner.parameters.items()}


def main(folder: Path, what: str, name: str) -> None:
    ranks = start(Device.CPU)
    found = updated(name, what, ranks)
    if ranks.is_main:
        save_file(found, folder / f"{what}-{name}.safetensors")
    ranks.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
