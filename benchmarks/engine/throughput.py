"""The engine and transformers by turns in this process: CPU time for the same tokens. Prints JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

import torch

from benchmarks.engine.loads import BASIC, LONG, Load, prompts_of, quick
from benchmarks.engine.report import OWN, Throughput
from benchmarks.engine.sides import Batched, Continuous, Own, Side, reference
from gyre.elastic.engine.models.load import load_model


def measure(model: str, load: Load, sides: Sequence[Side], vocab_size: int, rounds: int) -> Throughput:
    """Turns of all sides, each first in half of them; one before does not count, unless it takes minutes."""
    prompts = prompts_of(load, vocab_size)
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    outputs: dict[str, list[list[int]]] = {}
    for turn in range(-1 if load.rounds > 1 else 0, load.turns * min(rounds, load.rounds)):
        for side in sides if turn % 2 else reversed(sides):
            start = time.process_time()
            outputs[side.name] = side.generate(prompts, load)
            took = time.process_time() - start
            side.forget()
            if turn >= 0:
                seconds[side.name].append(took)
    for name, found in outputs.items():
        if [len(ids) for ids in found] != [load.output] * load.open:
            raise RuntimeError(f"{name} made other than {load.output} tokens of a prompt")
    same = {
        name: sum(map(list.__eq__, found, outputs[OWN])) for name, found in outputs.items() if name != OWN
    }
    return Throughput(model=model, load=load, seconds=seconds, same={} if load.temperature else same)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.engine.throughput", description=__doc__)
    options.add_argument("--model", required=True)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--long", action="store_true", help="the load for continuous batching alone")
    options.add_argument("--quick", action="store_true")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    loaded = load_model(chosen.model)
    other = reference(loaded)
    sides: list[Side] = [Own(loaded), Batched(other), *([Continuous(other)] if chosen.long else [])]
    loads = [LONG[chosen.model]] if chosen.long else BASIC[chosen.model]
    for load in map(quick, loads) if chosen.quick else loads:
        found = measure(chosen.model, load, sides, loaded.vocab_size, chosen.rounds)
        print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
