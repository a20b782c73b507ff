"""The benchmark of training measures what it says: the same trees for all, right bars."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
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
    names = ("cases", "steps", "peak", "report", "run")
    yield SimpleNamespace(**{name: import_module(f"benchmarks.train.{name}") for name in names})


@pytest.fixture(scope="module")
def policy() -> Any:
    torch = import_module("torch")
    torch.set_num_threads(1)
    return import_module("gyre.trainer.passes.policy").load_policy("tiny")


def work(case: Any) -> Any:
    merge = import_module("gyre.trainer.pack.merge").merge
    return import_module("gyre.trainer.pack.work").measure(merge(case.make()).forest)


def test_trees_are_what_their_names_say(bench: Any) -> None:
    short, long, agent, group = (work(case) for case in bench.cases.CASES["tiny"])
    # The last token of a path is a label only.
    assert (short.tokens, short.flat_tokens, short.paths) == (1500 + 3 * 299, 3 * 1799, 3)
    assert (long.tokens, long.flat_tokens, long.paths) == (6000 + 3 * 499, 3 * 6499, 3)
    assert agent.paths == 5
    assert group.paths == 16
    assert group.tokens == 1000 + (group.flat_tokens - 16 * 1000)


def test_all_passes_take_turns_on_the_same_tree(bench: Any, policy: Any) -> None:
    case = bench.cases.quick(bench.cases.CASES["tiny"][2])
    found = bench.steps.measure(policy, "tiny", case, 3)
    assert set(found.seconds) == {"flat x 1", "flat x 4", "packed", "dfs"}
    assert {len(taken) for taken in found.seconds.values()} == {1}  # of a short one
    assert found.flat_tokens > found.tokens
    assert bench.report.Results(steps=[found]).bars() == []


def test_a_pass_that_computes_something_else_is_not_measured(
    bench: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = bench.steps.step

    def step(policy: Any, tree_pass: Any, piece: Any) -> tuple[float, float]:
        took, loss = stock(policy, tree_pass, piece)
        return took, loss * (1.01 if "Dfs" in type(tree_pass).__name__ else 1)

    monkeypatch.setattr(bench.steps, "step", step)
    case = bench.cases.quick(bench.cases.CASES["tiny"][0])
    with pytest.raises(RuntimeError, match="same"):
        bench.steps.measure(policy, "tiny", case, 1)


def test_flops_are_those_of_weights_pairs_and_the_head(bench: Any, policy: Any) -> None:
    """tiny: 2 layers of 128 x (128 + 64 + 64 + 128 + 3 x 384) weights and norms, 4 heads of 32, 2,048 ids."""
    layer = 128 * (128 + 64 + 64 + 128 + 3 * 384) + 2 * 128 + 2 * 32
    assert bench.steps.flops(policy, 1, 0, 0) == 2 * (2 * layer + 128)
    assert bench.steps.flops(policy, 0, 1, 0) == 4 * 128 * 2
    assert bench.steps.flops(policy, 0, 0, 1) == 2 * 128 * 2048


def steps(bench: Any, model: str, **seconds: float) -> Any:
    """A FLOP ratio of 2, a token ratio of 2.5."""
    own = {name.replace("_", " "): [taken] * 3 for name, taken in seconds.items()}
    return bench.report.Steps(
        model=model,
        case="c",
        short=False,
        tokens=100,
        flat_tokens=250,
        flops=10.0,
        flat_flops=20.0,
        seconds=own,
    )


def test_bars_compare_the_faster_pass_with_the_faster_flat(bench: Any) -> None:
    rows = [
        steps(bench, "tiny", flat_x_1=10.0, flat_x_4=9.0, packed=6.0, dfs=5.0),
        steps(bench, "smollm2", flat_x_1=10.0, flat_x_4=11.0, packed=4.9, dfs=7.0),
    ]
    bars = bench.report.Results(steps=rows).bars()
    assert [(bar.name.split(", ")[2], round(bar.value, 2), bar.met) for bar in bars] == [
        ("dfs", 0.9, True),
        ("packed", 1.02, True),
        ("packed", 0.82, True),
    ]
    slow = steps(bench, "smollm2", flat_x_1=10.0, flat_x_4=10.0, packed=6.1, dfs=6.1)
    assert [bar.met for bar in bench.report.Results(steps=[slow]).bars()] == [False, False]


def test_memory_is_what_comes_on_top_of_the_model(bench: Any) -> None:
    peaks = [
        bench.report.Peak(
            model="tiny", case="c", short=False, side=side, held_bytes=1000, peak_bytes=1000 + taken
        )
        for side, taken in (("flat x 1", 100), ("packed", 200), ("dfs", 116))
    ]
    (bar,) = bench.report.Results(peaks=peaks).bars()
    assert (bar.value, bar.met) == (pytest.approx(1.16), False)


@pytest.mark.slow
def test_a_quick_run_measures_every_part() -> None:
    command = [sys.executable, "-m", "benchmarks", "--train", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=300)
    report = json.loads(done.stdout)["train"]
    assert [found["model"] for found in report["steps"]] == ["tiny"]
    assert {found["side"] for found in report["peaks"]} == {"flat x 1", "packed", "dfs"}
