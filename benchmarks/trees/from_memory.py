"""The token tree of one execution from full prompts in memory, beside reading that memory once.

A process of its own, so that its peak memory is that of this work; prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.material import make_text
from benchmarks.processes import high_water
from benchmarks.trees.long_run import Plan, Size, long_run, size_of
from benchmarks.trees.story import whole_prompts
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.trees import CallKey

SEED = 8
"""Of 16 seeds the one whose execution is nearest to 114.6M tokens."""


def make(plan: Plan) -> tuple[list[Call], Size]:
    """Calls with whole prompts; nothing else stays in memory."""
    turns = list(long_run("run", SEED, make_text(plan.text_tokens), plan))
    arrays = zip(turns, whole_prompts(turns), strict=True)
    calls = [Call(CallKey(turn.call_id), suffix=prompt, output=output) for turn, (prompt, output) in arrays]
    return calls, size_of(turns)


def built(calls: Sequence[Call]) -> Builder:
    """All prompts and outputs in one tree, each beginning once."""
    builder = Builder("run")
    for call in calls:
        builder.add(call)
    return builder


def read_once(calls: Sequence[Call]) -> int:
    """A sum of all of it: the fastest read that numpy has."""
    arrays = (ids for call in calls for ids in (call.suffix, call.output) if ids is not None)
    return sum(int(ids[: len(ids) // 2 * 2].view(np.uint64).sum()) for ids in arrays)


def cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def forget_peak() -> None:
    """What it took to make the input is not of interest; where the system does not let us, it counts."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def measure(plan: Plan, scale: float, rounds: int) -> dict[str, Any]:
    calls, size = make(plan.scaled(scale))
    held = resident_bytes()
    forget_peak()
    read: list[float] = []
    tree: list[float] = []
    for _ in range(rounds):
        read.append(cpu_s(lambda: read_once(calls)))
        tree.append(cpu_s(lambda: built(calls)))
    peak = high_water(os.getpid())
    return {
        "scale": scale,
        "calls": size.calls,
        "logged_tokens": size.logged,
        "new_tokens": size.new,
        "tree_tokens": sum(len(node.token_ids) for node in built(calls).tree().nodes),
        "read_s": read,
        "tree_s": tree,
        "held_bytes": held,
        "peak_bytes": peak,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.trees.from_memory", description=__doc__)
    options.add_argument("--scale", type=float, default=1)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--plan", default="{}", help="JSON")
    chosen = options.parse_args(arguments)
    plan = Plan(**json.loads(chosen.plan))
    print(json.dumps(measure(plan, chosen.scale, chosen.rounds)))


if __name__ == "__main__":
    main()
