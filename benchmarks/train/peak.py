"""Memory that one step of one pass takes on top of the model. A process of its own; prints JSON."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict

import torch

from benchmarks.processes import high_water
from benchmarks.train.cases import CASES, quick
from benchmarks.train.report import Peak
from benchmarks.train.steps import sides, step
from benchmarks.trees.from_memory import forget_peak, resident_bytes
from gyre.trainer.pack.merge import merge
from gyre.trainer.passes.policy import load_policy


def measure(model: str, number: int, side: str, *, short: bool) -> Peak:
    policy = load_policy(model)
    case = quick(CASES[model][number]) if short else CASES[model][number]
    small = merge(quick(case).make()).forest
    # Gradients are there before the step, as they are from the second one on.
    step(policy, sides(policy, small)[side], small)
    piece = merge(case.make()).forest
    held = resident_bytes()
    forget_peak()
    step(policy, sides(policy, piece)[side], piece)
    return Peak(
        model=model,
        case=case.label,
        short=case.short,
        side=side,
        held_bytes=held,
        peak_bytes=high_water(os.getpid()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.train.peak", description=__doc__)
    options.add_argument("--model", required=True)
    options.add_argument("--case", type=int, required=True, help="its number")
    options.add_argument("--side", required=True)
    options.add_argument("--quick", action="store_true")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    print(json.dumps(asdict(measure(chosen.model, chosen.case, chosen.side, short=chosen.quick))))


if __name__ == "__main__":
    main()
