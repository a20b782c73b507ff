"""The benchmark of trees measures what it says: its executions are as described, its logs as recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gyre.proxy import read_log
from gyre.proxy.log.check import check
from gyre.proxy.log.record.delta import DeltaIndex, RowKey

ROOT = Path(__file__).resolve().parent.parent
TINY = dict(calls=8, start=9_000, end=12_000, output=40, summary=100)
TINY |= dict(agents=3, agent_calls=3, agent_start=13_000, agent_end=14_000, agent_output=30, retries=4)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's modules; they are no part of the installed project."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("story", "long_run", "cases", "logs", "from_memory", "report", "run")
    modules = {name: import_module(f"benchmarks.trees.{name}") for name in names}
    yield SimpleNamespace(**modules, text=import_module("benchmarks.material").make_text(100_000))


def tiny_run(bench: Any, name: str = "e1", seed: int = 1) -> list[Any]:
    return list(bench.long_run.long_run(name, seed, bench.text, bench.long_run.Plan(**TINY)))


def test_the_long_execution_is_the_one_that_peers_were_measured_on(bench: Any) -> None:
    plan = bench.long_run.Plan()
    turns = list(bench.long_run.long_run("e1", 8, import_module("benchmarks.material").make_text(), plan))
    size = bench.long_run.size_of(turns)
    assert size.calls == plan.all_calls == 382
    assert round(size.logged / 1e6, 1) == 114.7
    assert round(size.new / 1e6, 2) == 2.25
    longest = max(turns, key=lambda turn: turn.prompt_tokens)
    assert longest.prompt_tokens + len(longest.output) == 703_000
    assert sum(turn.retry_count == 1 for turn in turns) == 10


def test_prompts_are_told_as_the_recorder_tells_them(bench: Any) -> None:
    for name, turns in all_executions(bench):
        index = DeltaIndex()
        for turn, (prompt, output) in zip(turns, bench.story.whole_prompts(turns), strict=True):
            found = index.match(name, prompt.tobytes())
            assert (found.digest, found.shared) == (turn.digest, turn.shared), turn.call_id
            assert (found.parent.call_id if found.parent else None) == turn.parent
            index.add(name, RowKey(turn.call_id, 0, 0), found, output.tobytes(), [])


def test_scale_changes_calls_and_leaves_steps_alike(bench: Any) -> None:
    plan, half = bench.long_run.Plan(), bench.long_run.Plan().scaled(0.5)
    assert (half.calls, half.end, half.agents, half.retries) == (50, 366_500, 3, 5)
    assert half.agent_calls == plan.agent_calls and half.output == plan.output


def test_the_log_is_what_a_recorder_would_have_left(bench: Any, tmp_path: Path) -> None:
    runs = [tiny_run(bench, f"e{seed}", seed) for seed in range(2)]
    bench.logs.write_log(tmp_path, runs, "g1")
    assert check(tmp_path).findings == []
    log = read_log(tmp_path)
    prompts = bench.story.whole_prompts(runs[1])
    for turn, (prompt, output) in zip(runs[1], prompts, strict=True):
        assert np.array_equal(log.prompt_ids(turn.call_id), prompt)
        assert np.array_equal(log.output_ids(turn.call_id), output)
    assert log.executions["event"].to_pylist().count("ended") == 2


def test_cases_have_the_calls_that_they_had_with_the_peer(bench: Any) -> None:
    for case in bench.cases.CASES:
        world = bench.story.World("e1", 5, bench.text)
        assert len(list(case.turns(world))) == case.calls


def test_a_tree_from_memory_has_what_is_new_and_no_more(bench: Any) -> None:
    found = bench.from_memory.measure(bench.long_run.Plan(**TINY), 1, 1)
    assert found["calls"] == len(tiny_run(bench))
    assert found["tree_tokens"] == found["new_tokens"] < found["logged_tokens"]


def test_everything_is_measured_and_all_that_was_sampled_is_delivered(bench: Any, tmp_path: Path) -> None:
    found = bench.run.measure(tmp_path, 1, bench.long_run.Plan(**TINY), scales=(1,), group=2)
    assert [size.executions for size in found.logs] == [2]
    assert [case.quarantined for case in found.cases] == [0, 0, 0, 0, 0, 1]
    delivered = [bar for bar in found.bars() if bar.name.endswith("delivered share")]
    assert [bar.value for bar in delivered] == [100, 100]
    for grid in found.grids():
        assert len({len(row) for row in [grid.head, *grid.rows]}) == 1
        assert len(grid.show()) == len(grid.markdown()) - 2 == len(grid.rows) + 2


def test_exponents_are_slopes(bench: Any) -> None:
    sizes = [1000, 2000, 3000, 4000]
    assert bench.report.exponent(sizes, [3e-9 * size for size in sizes]) == pytest.approx(1)
    assert bench.report.exponent(sizes, [1e-9 * size**2 for size in sizes]) == pytest.approx(2)


def all_executions(bench: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    yield "e1", tiny_run(bench)
    for case in bench.cases.CASES:
        yield case.name, list(case.turns(bench.story.World(case.name, 3, bench.text)))
