"""The passes by turns in this process: CPU time of forward and backward over the same trees. Prints JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

import torch

from benchmarks.train.cases import CASES, Case, quick
from benchmarks.train.report import DFS, PACKED, Steps, flat
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.work import measure as measure_work
from gyre.trainer.passes.dfs import DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy, load_policy
from gyre.trainer.passes.run import TreePass

FLAT_ROWS = (1, 4)
"""Sequences that `flat` computes at once; the faster of them is what the others are compared with."""


def sides(policy: Policy, piece: Piece) -> dict[str, TreePass]:
    work = measure_work(piece)
    rows = [rows for rows in FLAT_ROWS if rows == 1 or work.paths > 1]
    return {
        **{flat(count): FlatPass(policy, rows_tokens=count * work.longest_path) for count in rows},
        PACKED: PackedPass(policy),
        DFS: DfsPass(policy, budget=work.longest_path),
    }


def measure(policy: Policy, model: str, case: Case, rounds: int) -> Steps:
    """Turns of all sides, each first in half of them."""
    piece = merge(case.make()).forest
    work = measure_work(piece)
    passes = sides(policy, piece)
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    losses: dict[str, float] = {}
    for turn in range(min(rounds, case.rounds)):
        for name in passes if turn % 2 else reversed(passes):
            took, losses[name] = step(policy, passes[name], piece)
            seconds[name].append(took)
    if max(losses.values()) - min(losses.values()) > 1e-4 * abs(min(losses.values())):
        raise RuntimeError(f"the passes do not compute the same: {losses}")
    return Steps(
        model=model,
        case=case.label,
        short=case.short,
        tokens=work.tokens,
        flat_tokens=work.flat_tokens,
        flops=flops(policy, work.tokens, work.pairs, work.targets),
        flat_flops=flops(policy, work.flat_tokens, work.flat_pairs, work.targets),
        seconds=seconds,
    )


def step(policy: Policy, tree_pass: TreePass, piece: Piece) -> tuple[float, float]:
    """CPU seconds, and the loss: the sum of all log-probabilities."""
    policy.model.zero_grad()
    temperature_K = torch.ones(len(piece.label_K))
    start = time.process_time()
    output = tree_pass(piece, temperature_K, lambda logprobs_k, _: logprobs_k.sum())
    return time.process_time() - start, output.loss


def flops(policy: Policy, tokens: int, pairs: int, targets: int) -> float:
    """Of one forward pass; a backward pass has twice as many of each kind.

    2 for each weight of a layer and token; 4 per pair, head, layer and dimension of the head; and the output
    embedding for each target.
    """
    config = policy.model.config
    embedding: torch.Tensor = policy.model.get_output_embeddings().weight
    weights = sum(
        parameter.numel() for parameter in policy.model.parameters() if parameter.shape != embedding.shape
    )
    heads: int = config.num_attention_heads
    dim: int = vars(config).get("head_dim") or config.hidden_size // heads
    per_pair = 4 * dim * heads * config.num_hidden_layers
    return float(2 * weights * tokens + per_pair * pairs + 2 * embedding.numel() * targets)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.train.steps", description=__doc__)
    options.add_argument("--model", required=True)
    options.add_argument("--case", type=int, required=True, help="its number")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--quick", action="store_true")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    policy = load_policy(chosen.model)
    case = CASES[chosen.model][chosen.case]
    # What a process does once is not part of a step.
    measure(policy, chosen.model, quick(case), 1)
    found = measure(policy, chosen.model, quick(case) if chosen.quick else case, chosen.rounds)
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
