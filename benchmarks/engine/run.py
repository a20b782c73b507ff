"""Measures the embedded engine: each part in a process of its own, one after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.engine import served
from benchmarks.engine.loads import SMOLLM2, TINY, Load
from benchmarks.engine.report import LLAMACPP, OWN, Moves, Results, Throughput
from benchmarks.processes import ROOT, SYSTEM_CORE, module, pin

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def measure(rounds: int, *, short: bool = False, only: str = "") -> Results:
    """`short`: tiny alone, with few tokens. `only`: parts whose name contains this."""
    results = Results()
    models = (TINY,) if short else (TINY, SMOLLM2)
    few = ("--quick",) if short else ()
    for model in models:
        # SmolLM2 in the other one takes an hour: only when asked for.
        for kind in ((), ("--long",)) if model == TINY or "long" in only else ((),):
            if wanted(" ".join((model, "throughput", *kind)), only):
                options = ("--model", model, "--rounds", f"{rounds}", *few, *kind)
                results.throughput += map(throughput, run("benchmarks.engine.throughput", *options))
    for model in models:
        if wanted(f"{model} moves", only):
            options = ("--model", model, "--rounds", f"{rounds}", *(("--scale", "0.1") if short else ()))
            results.moves += [Moves(**found) for found in run("benchmarks.engine.moves", *options)]
    servers = [(model, OWN) for model in models] + ([] if short else [(SMOLLM2, LLAMACPP)])
    for model, engine in servers:
        if wanted(f"{model} http {engine}", only):
            results.served += served.measure(model, engine, rounds, short)
    return results


def wanted(part: str, only: str) -> bool:
    if only not in part:
        return False
    print(f"  engine: {part}", file=sys.stderr, flush=True)
    return True


def throughput(found: dict[str, Any]) -> Throughput:
    return Throughput(**found | {"load": Load(**found["load"])})


def run(name: str, *arguments: str) -> list[dict[str, Any]]:
    """What a part printed, a JSON document on each line."""
    done = subprocess.run(
        module(name, *arguments),
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
        check=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: pin(SYSTEM_CORE),
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
