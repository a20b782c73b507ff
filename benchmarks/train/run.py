"""Measures training on trees: each part in a process of its own, one after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.processes import ROOT, SYSTEM_CORE, module, pin
from benchmarks.train.cases import CASES, TINY
from benchmarks.train.report import DFS, PACKED, Peak, Results, Steps, flat

# Freed memory goes back at once, so that the peak is what was alive.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "MALLOC_ARENA_MAX": "1",
}


def measure(rounds: int, *, short: bool = False, only: str = "") -> Results:
    """`short`: tiny and one small tree. `only`: parts whose name contains this."""
    results = Results()
    for model in (TINY,) if short else CASES:
        for number, case in enumerate(CASES[model][:1] if short else CASES[model]):
            options = ("--model", model, "--case", f"{number}", *(("--quick",) if short else ()))
            if wanted(f"{model}, {case.label}, steps", only):
                found = run("benchmarks.train.steps", *options, "--rounds", f"{rounds}")
                results.steps.append(Steps(**found))
            if wanted(f"{model}, {case.label}, peak", only):
                for side in (flat(1), PACKED, DFS):
                    found = run("benchmarks.train.peak", *options, "--side", side)
                    results.peaks.append(Peak(**found))
    return results


def wanted(part: str, only: str) -> bool:
    if only not in part:
        return False
    print(f"  train: {part}", file=sys.stderr, flush=True)
    return True


def run(name: str, *arguments: str) -> dict[str, Any]:
    """What a part printed."""
    done = subprocess.run(
        module(name, *arguments),
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
        check=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: pin(SYSTEM_CORE),
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
