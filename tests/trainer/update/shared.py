"""What the tests of several processes compute on one side and on the other: one update, cut into pieces.

Run by torchrun it is the other side: `python -m tests.trainer.update.shared FOLDER CASE ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from gyre.trainer.gspo import Objective
from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.split import split
from gyre.trainer.passes.dfs import DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import TreePass
from gyre.trainer.settings import ClipLevel, Device, Dtype, LossSettings
from gyre.trainer.update.optimizer import gradients, scale_, trained_parameters
from gyre.trainer.update.processes import start
from gyre.trainer.update.ranks import Ranks
from tests.trainer.builders import context, targets, tree
from tests.trainer.models import Kind, tiny_model

torch.set_num_threads(1)

CLIP = LossSettings(clip_low=0.02, clip_high=0.02)
"""Some of the executions are clipped, and some are not."""
FREE = LossSettings(clip_level=ClipLevel.OFF)
"""What is decided in bf16 is another matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    run: str
    deal: str
    """How pieces go to two ranks, a key of `DEALS`."""
    kind: Kind = "qwen3"
    dtype: Dtype = Dtype.FP32
    train: tuple[str, ...] = ("*",)

    @property
    def name(self) -> str:
        return "-".join((self.run, self.deal, self.kind, self.dtype, *self.train)).replace("*", "all")


DEALS: dict[str, tuple[int, Callable[[list[Piece], int], list[Piece]]]] = {
    # The short root alone against everything else.
    "uneven": (72, lambda pieces, rank: pieces[1:] if rank == 0 else pieces[:1]),
    "none": (72, lambda pieces, rank: [] if rank == 0 else pieces),
    # Pieces that have a context in common, more of them on one rank.
    "many": (40, lambda pieces, rank: pieces[:1] if rank == 0 else pieces[1:]),
}
"""A budget, and what each of two ranks has of the pieces."""

CASES = [Case(run=run, deal=deal) for run in ("flat", "packed", "dfs") for deal in DEALS]
MORE = [
    *(
        Case(run=run, deal="many", kind=kind)
        for run in ("flat", "packed", "dfs")
        for kind in ("llama", "moe")
    ),
    *(Case(run="dfs", deal="many", kind=kind) for kind in ("hybrid", "mixed")),
    *(Case(run=run, deal="many", train=("*embed_tokens*",)) for run in ("flat", "dfs")),
    *(Case(run=run, deal="many", train=("*layers.1*",)) for run in ("flat", "dfs")),
    *(Case(run=run, deal="many", kind="llama", train=("lm_head*",)) for run in ("flat", "packed")),
    *(Case(run=run, deal="many", dtype=Dtype.BF16) for run in ("flat", "dfs")),
]


def batch() -> Packed:
    """Three executions on the same beginning; the first has another, short root as well."""
    rng = np.random.default_rng(5)
    prompt = [int(value) for value in rng.integers(0, 97, 9)]

    def ids(count: int) -> list[int]:
        return [int(value) for value in rng.integers(0, 97, count)]

    trees = []
    for index in range(3):
        nodes = [context(-1, *prompt), targets(0, *ids(4), temperature=0.8)]
        nodes += [targets(1, *ids(2 + branch % 3)) for branch in range(8 + (index == 0))]
        if index == 0:
            nodes += [context(-1, 96, 95), targets(len(nodes), 94, 93, 92)]
        trees.append(tree(f"run-{index}", nodes, advantage=(-1.0, 0.5, 1.5)[index]))
    return merge(trees)


def divide(packed: Packed, deal: str, rank: int) -> list[Piece]:
    budget, mine = DEALS[deal]
    return mine(split(packed.forest, budget), rank)


def pieces_of(packed: Packed, case: Case, ranks: Ranks) -> list[Piece]:
    """All of them where there is one process."""
    return [
        piece
        for rank in range(2)
        if rank == ranks.rank or ranks.size == 1
        for piece in divide(packed, case.deal, rank)
    ]


def a_pass(policy: Policy, name: str) -> TreePass:
    match name:
        case "flat":
            return FlatPass(policy, rows_tokens=40)
        case "packed":
            return PackedPass(policy)
    return DfsPass(policy, budget=1000, together=0)


def compute(case: Case, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Gradients by name, their `norm`, which targets are `clipped`; on others than the main process empty."""
    packed = batch()
    policy = Policy(tiny_model(case.kind), dtype=case.dtype)
    old_T = scored(FlatPass(policy), packed, split(packed.forest, 1000)) + moved(packed)
    ranks.shard(policy, alike=case.run != "dfs")
    parameters = trained_parameters(policy.model, case.train, ())
    run, pieces = a_pass(policy, case.run), pieces_of(packed, case, ranks)
    with ranks.passes(policy.model, grad=False):
        now_T = scored(run, packed, pieces)
    ranks.sum_(now_T)
    loss = CLIP if case.dtype is Dtype.FP32 else FREE
    objective = Objective.of(
        packed.targets, loss, old_T=old_T, now_T=now_T, reference_T=None, device=policy.device
    )
    with ranks.passes(policy.model, grad=True):
        for piece in pieces:
            run(piece, temperature(packed, piece), objective.part(torch.from_numpy(piece.target_K)))
    scale_(gradients(parameters.values()), 1 / len(packed.targets.executions))
    norm = ranks.norm(gradients(parameters.values()))
    found = {name: ranks.whole(own.grad) for name, own in parameters.items() if own.grad is not None}
    return found | {"norm": torch.tensor(norm), "clipped": objective.clipped_T, "logprobs": now_T}


def moved(packed: Packed) -> torch.Tensor:
    """What the policy has lost since the batch's start, (T,): two of the executions are clipped.

    One of them by what it lost on its short root alone, which mostly is another process's.
    """
    targets = packed.targets
    lost_T = 0.05 * torch.randn(len(targets), generator=torch.Generator().manual_seed(1))
    lost_T[np.flatnonzero(targets.execution_T == 0)[-3:]] += 1.0
    lost_T[targets.execution_T == 1] -= 0.1
    return lost_T


def scored(run: TreePass, packed: Packed, pieces: Sequence[Piece]) -> torch.Tensor:
    """(T,), 0 for targets of other pieces."""
    logprobs_T = torch.zeros(len(packed.targets))
    for piece in pieces:
        logprobs_T[piece.target_K] = run(piece, temperature(packed, piece)).logprobs_K
    return logprobs_T


def temperature(packed: Packed, piece: Piece) -> torch.Tensor:
    return torch.from_numpy(packed.targets.temperature_T[piece.target_K])


def main(folder: Path, names: list[str]) -> None:
    ranks = start(Device.CPU)
    for case in CASES + MORE:
        if case.name in names:
            found = compute(case, ranks)
            if ranks.is_main:
                save_file(found, folder / f"{case.name}.safetensors")
    ranks.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
