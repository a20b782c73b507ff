"""What the tests of several processes compute on one side and on the other: one update, cut into pieces.

Run by torchrun it is the other side: `python -m tests.trainer.update.shared FOLDER CASE ...`.
"""

from __future__ import annotations

import sys
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
from gyre.trainer.settings import Device, Dtype, LossSettings
from gyre.trainer.update.optimizer import gradients, scale_, trained_parameters
from gyre.trainer.update.processes import start
from gyre.trainer.update.ranks import OneProcess, Ranks
from tests.trainer.builders import context, targets, tree
from tests.trainer.models import Kind, tiny_model

torch.set_num_threads(1)

CLIP = LossSettings(clip_low=0.02, clip_high=0.02)
"""Some of the executions are clipped, and some are not."""


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


DEALS = {
    # One segment against 29: the first root alone, everything else together.
    "uneven": (83, lambda pieces, rank: pieces[:1] if rank == 0 else pieces[1:]),
    "none": (83, lambda pieces, rank: [] if rank == 0 else pieces),
    # Pieces that have a context in common, more of them on one rank.
    "many": (40, lambda pieces, rank: pieces[:1] if rank == 0 else pieces[1:]),
}
CASES = [Case(run=run, deal=deal) for run in ("flat", "packed", "dfs") for deal in DEALS]
MORE = [
    *(Case(run=run, deal="many", kind=kind) for run in ("flat", "packed", "dfs") for kind in ("llama", "moe")),
    *(Case(run="dfs", deal="many", kind=kind) for kind in ("hybrid", "mixed")),
    *(Case(run=run, deal="many", train=("*embed_tokens*",)) for run in ("flat", "dfs")),
    *(Case(run=run, deal="many", train=("*layers.1*",)) for run in ("flat", "dfs")),
    *(Case(run=run, deal="many", kind="llama", train=("lm_head*",)) for run in ("flat", "packed")),
    *(Case(run=run, deal="many", dtype=Dtype.BF16) for run in ("flat", "dfs")),
]


def batch() -> Packed:
    """Three executions on the same beginning; each has a short root of its own as well."""
    rng = np.random.default_rng(5)
    prompt = [int(value) for value in rng.integers(0, 97, 9)]

    def ids(count: int) -> list[int]:
        return [int(value) for value in rng.integers(0, 97, count)]

    trees = [tree("short", [context(-1, 96, 95), targets(0, 94, 93, 92)], advantage=0.7)]
    for index in range(3):
        nodes = [context(-1, *prompt), targets(0, *ids(4), temperature=0.8)]
        nodes += [targets(1, *ids(2 + branch % 4)) for branch in range(8)]
        trees.append(tree(f"wide-{index}", nodes, advantage=(-1.0, 0.5, 1.5)[index]))
    return merge(trees)


def pieces_of(packed: Packed, case: Case, ranks: Ranks) -> list[Piece]:
    budget, deal = DEALS[case.deal]
    pieces = split(packed.forest, budget)
    return pieces if ranks.size == 1 else deal(pieces, ranks.rank)


def a_pass(policy: Policy, name: str) -> TreePass:
    match name:
        case "flat":
            return FlatPass(policy, rows_tokens=40)
        case "packed":
            return PackedPass(policy)
    return DfsPass(policy, budget=1000, together=0)


def compute(case: Case, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Gradients by name, `norm`, and which targets are `clipped`; on the main process, or on a single one."""
    packed = batch()
    policy = Policy(tiny_model(case.kind), dtype=case.dtype)
    ranks.shard(policy, alike=case.run != "dfs")
    parameters = trained_parameters(policy.model, case.train, ())
    run = a_pass(policy, case.run)
    pieces = pieces_of(packed, case, ranks)
    now_T = torch.zeros(len(packed.targets))
    with ranks.passes(policy.model, grad=False):
        for piece in pieces:
            now_T[piece.target_K] = run(piece, _temperature(packed, piece)).logprobs_K
    ranks.sum_(now_T)
    old_T = now_T + 0.05 * torch.randn(len(now_T), generator=torch.Generator().manual_seed(1))
    objective = Objective.of(
        packed.targets, CLIP, old_T=old_T, now_T=now_T, reference_T=None, device=policy.device
    )
    with ranks.passes(policy.model, grad=True):
        for piece in pieces:
            run(piece, _temperature(packed, piece), objective.part(torch.from_numpy(piece.target_K)))
    scale_(gradients(parameters.values()), 1 / len(packed.targets.executions))
    norm = ranks.norm(gradients(parameters.values()))
    found = {name: ranks.whole(own.grad) for name, own in parameters.items() if own.grad is not None}
    return found | {"norm": torch.tensor(norm), "clipped": objective.clipped_T, "logprobs": now_T}


def _temperature(packed: Packed, piece: Piece) -> torch.Tensor:
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
