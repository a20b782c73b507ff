"""Processes of which one runs out of memory, or ends: `python -m tests.trainer.update.failing FOLDER WHAT`.

WHAT is `nothing`, `memory` or `error`, and the pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from gyre.trainer.settings import Device, Dtype, OptimizerSettings, TrainSettings
from gyre.trainer.update.learner import Learner, Network
from gyre.trainer.update.processes import start
from gyre.trainer.update.ranks import Ranks
from tests.trainer.builders import Shape, random_trees
from tests.trainer.models import tiny_model
from tests.trainer.update.shared import a_pass

torch.set_num_threads(1)


class Failing:
    """A pass that calls something with every part of the loss."""

    def __init__(self, run: TreePass, fail: Callable[[], None]) -> None:
        self._run = run
        self._fail = fail

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        def failing(logprobs_k: torch.Tensor, which_k: torch.Tensor) -> torch.Tensor:
            assert loss is not None
            value = loss(logprobs_k, which_k)
            self._fail()
            return value

        return self._run(piece, temperature_K, None if loss is None else failing)


def updated(name: str, what: str, ranks: Ranks, dtype: Dtype = Dtype.FP32) -> dict[str, torch.Tensor]:
    """Weights after two updates; the second part of the first one's loss disturbs the last process."""
    policy = Policy(tiny_model(), dtype=dtype)
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += ranks.rank == ranks.size - 1
        if calls == 2 and what != "nothing":
            calls += 1
            raise MemoryError if what == "memory" else ArithmeticError("as planted")

    settings = TrainSettings(
        token_budget=40, updates_per_batch=2, optimizer=OptimizerSettings(lr=1e-3), dtype=dtype
    )
    network = Network(policy=policy, make=lambda budget: Failing(a_pass(policy, name), fail))
    ranks.shard(policy, alike=name != "dfs")
    learner = Learner(network, settings, total_updates=10, ranks=ranks)
    trees = random_trees(3, Shape(executions=10, missing=1.0))
    batch = learner.begin([trees[:6], trees[6:]])
    for part in range(2):
        learner.update(batch, part)
    wanted = 20 if what == "memory" else 40
    assert learner.progress.token_budget == wanted, learner.progress
    return {name: ranks.whole(own) for name, own in learner.parameters.items()}


def main(folder: Path, what: str, name: str) -> None:
    ranks = start(Device.CPU)
    found = updated(name, what, ranks)
    if ranks.is_main:
        save_file(found, folder / f"{what}-{name}.safetensors")
    ranks.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
