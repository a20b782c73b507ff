"""Processes that compute groups as they come: `python -m tests.trainer.update.streaming FOLDER WHAT PASS`.

WHAT is `nothing`, or `memory`: that of the last process ends once, in the second group of the second update.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.work import measure
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from gyre.trainer.settings import Device, LossSettings, OptimizerSettings, TrainSettings
from gyre.trainer.update.learner import Learner
from gyre.trainer.update.network import Network
from gyre.trainer.update.processes import start
from gyre.trainer.update.ranks import Ranks
from tests.trainer.builders import Shape, random_trees
from tests.trainer.models import tiny_model
from tests.trainer.update.shared import a_pass

torch.set_num_threads(1)


def groups() -> list[list[TrainTree]]:
    """Six; of the second there is nothing to train, and the third is less than two processes can divide."""
    trees = random_trees(3, Shape(executions=20, groups=4, missing=1.0))
    found = [[one for one in trees if one.group == f"group-{group}"] for group in range(4)]
    short = min(found[1], key=lambda one: one.tokens)
    return [found[0], [], [short], *found[2:], found[1]]


class Small:
    """A pass that ends once for want of memory, when that is due, with gradients already there."""

    def __init__(self, own: TreePass) -> None:
        self._own = own
        self.due = False

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        out = self._own(piece, temperature_K, loss)
        if loss and self.due and measure(piece).paths > 1:
            self.due = False
            raise MemoryError
        return out


def updated(name: str, what: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Weights after the two updates of a batch."""
    policy = Policy(tiny_model())
    passes: list[Small] = []

    def make(budget: int) -> TreePass:
        passes.append(Small(a_pass(policy, name)))
        return passes[-1]

    settings = TrainSettings(
        token_budget=40,
        updates_per_batch=2,
        loss=LossSettings(clip_low=0.02, clip_high=0.02),
        optimizer=OptimizerSettings(lr=1e-3, eps=1e-4),
    )
    network = Network(policy=policy, make=make)
    ranks.shard(policy, alike=name != "dfs")
    learner = Learner(network, settings, total_updates=10, ranks=ranks)
    stream = learner.stream(groups=len(groups()))
    reports = []
    for group in groups():
        if what == "memory" and stream.left == 2:
            passes[-1].due = ranks.rank == ranks.size - 1
        reports += stream.add(group)
    assert [report.update for report in reports] == [1, 2]
    assert [report.halved for report in reports] == [0, what == "memory"]
    return {name: ranks.whole(own) for name, own in learner.parameters.items()}


def main(folder: Path, what: str, name: str) -> None:
    ranks = start(Device.CPU)
    found = updated(name, what, ranks)
    if ranks.is_main:
        save_file(found, folder / f"{what}-{name}.safetensors")
    ranks.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
