"""The benchmark of the embedded engine measures what it says: equal work, fair turns, right bars."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's modules; they are no part of the installed project."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("loads", "sides", "throughput", "moves", "report", "run")
    yield SimpleNamespace(**{name: import_module(f"benchmarks.engine.{name}") for name in names})


@pytest.fixture(scope="module")
def tiny() -> Any:
    torch = import_module("torch")
    torch.set_num_threads(1)
    return import_module("gyre.elastic.engine.models.load").load_model("tiny")


@dataclass
class Fake:
    """A side that makes zeros and says in `turns` that it had its turn."""

    name: str
    turns: list[str]
    short_by: int = 0
    forgot: int = field(default=0)

    def generate(self, prompts: list[list[int]], load: Any) -> list[list[int]]:
        self.turns.append(self.name)
        return [[0] * (load.output - self.short_by) for _ in prompts]

    def forget(self) -> None:
        self.forgot += 1


def test_sides_take_turns_and_each_is_first_in_half_of_them(bench: Any) -> None:
    turns: list[str] = []
    sides = [Fake("gyre", turns), Fake("generate", turns)]
    load = bench.loads.Load(open=2, prompt=3, output=4, temperature=0.0, turns=2)
    found = bench.throughput.measure("tiny", load, sides, 50, rounds=2)
    pairs = [tuple(turns[place : place + 2]) for place in range(0, len(turns), 2)]
    assert len(pairs) == 1 + 2 * 2
    assert sorted(pairs[1:]) == [("generate", "gyre")] * 2 + [("gyre", "generate")] * 2
    assert [len(seconds) for seconds in found.seconds.values()] == [4, 4]
    assert found.same == {"generate": 2}
    assert {side.forgot for side in sides} == {5}


def test_a_side_that_makes_fewer_tokens_is_no_faster(bench: Any) -> None:
    sides = [Fake("gyre", []), Fake("generate", [], short_by=1)]
    load = bench.loads.Load(open=2, prompt=3, output=4, temperature=0.0)
    with pytest.raises(RuntimeError, match="generate"):
        bench.throughput.measure("tiny", load, sides, 50, rounds=1)


def test_prompts_have_no_beginning_in_common(bench: Any) -> None:
    load = bench.loads.Load(open=4, prompt=30, output=4, temperature=0.0)
    prompts = [ids for number in range(3) for ids in bench.loads.prompts_of(load, 1000, number)]
    assert len({tuple(ids[:3]) for ids in prompts}) == 12
    assert {len(ids) for ids in prompts} == {30}


def test_all_sides_make_the_same_greedy_tokens(bench: Any, tiny: Any) -> None:
    sides = bench.sides
    other = sides.reference(tiny)
    load = bench.loads.Load(open=5, prompt=40, output=12, temperature=0.0)
    prompts = bench.loads.prompts_of(load, tiny.vocab_size)
    made = [
        side.generate(prompts, load)
        for side in (sides.Own(tiny), sides.Batched(other), sides.Continuous(other))
    ]
    assert made[0] == made[1] == made[2]


def test_what_is_sampled_does_not_end_early(bench: Any, tiny: Any) -> None:
    sides = bench.sides
    load = bench.loads.Load(open=3, prompt=10, output=200, temperature=1.0)
    prompts = bench.loads.prompts_of(load, tiny.vocab_size)
    for side in (sides.Own(tiny), sides.Batched(sides.reference(tiny))):
        assert [len(ids) for ids in side.generate(prompts, load)] == [200] * 3


def test_what_moves_is_measured(bench: Any, tiny: Any) -> None:
    found = bench.moves.measure(tiny, 1, 0.02)
    assert (found.prefix, found.conversation) == (60, 80)
    assert min(found.cold_s + found.warm_s + found.prefill_s + found.moved_s + found.stop_s) > 0
    assert found.steps[0]["MB"] == pytest.approx(80 * 2 * 2 * 2 * 32 * 4 / 1e6, rel=0.1)


def row(bench: Any, own_s: float, **others: float) -> Any:
    load = bench.loads.Load(open=16, prompt=100, output=64, temperature=0.0)
    seconds = {"gyre": [own_s] * 3} | {name.replace("_", " "): [taken] * 3 for name, taken in others.items()}
    return bench.report.Throughput(model="tiny", load=load, seconds=seconds, same={})


def test_bars_ask_for_at_least_so_many_tokens(bench: Any) -> None:
    slow, fast = row(bench, 10.0, generate=8.9), row(bench, 10.0, generate=9.1)
    long = row(bench, 10.0, generate=5.0, continuous_batching=15.1)
    bars = bench.report.Results(throughput=[slow, fast, long]).bars()
    assert [(round(bar.value, 2), bar.bound, bar.met) for bar in bars] == [
        (0.89, ">= 0.9", False),
        (0.91, ">= 0.9", True),
        (1.51, ">= 1.5", True),
    ]


def test_bars_on_what_moves_are_ratios_to_computing_it(bench: Any) -> None:
    found = bench.report.Moves(
        model="tiny",
        prefix=3000,
        conversation=4000,
        cold_s=[10.0, 20.0],
        warm_s=[1.0, 2.0],
        prefill_s=[10.0, 10.0],
        steps=[{"export": 0.5, "import": 1.6, "MB": 100.0}] * 2,
        stop_s=[0.2, 0.9],
        usual_s=[0.1, 0.1],
    )
    bars = bench.report.Results(moves=[found]).bars()
    assert [(round(bar.value, 2), bar.met) for bar in bars] == [(0.1, True), (0.21, False), (0.9, True)]


def test_a_short_run_has_no_bars(bench: Any) -> None:
    load = bench.loads.quick(bench.loads.Load(open=16, prompt=100, output=64, temperature=0.0))
    found = bench.report.Throughput(model="tiny", load=load, seconds={"gyre": [1], "generate": [1]}, same={})
    assert bench.report.Results(throughput=[found]).bars() == []


@pytest.mark.slow
def test_a_quick_run_measures_every_part() -> None:
    command = [sys.executable, "-m", "benchmarks", "--engine", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=110)
    report = json.loads(done.stdout)["engine"]
    assert [found["load"]["open"] for found in report["throughput"]] == [1, 1, 4, 4, 16, 16, 16]
    assert [found["model"] for found in report["moves"]] == ["tiny"]
    kinds = {(found["kind"], found["load"]["open"]) for found in report["served"]}
    assert kinds == {(kind, open) for kind in ("plain", "streamed") for open in (1, 4, 16)} | {("prompts", 4)}
