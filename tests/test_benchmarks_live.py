"""The benchmark of live runs measures what it says: whose CPU time it is, and the bar."""

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
BURN = """
import subprocess, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    time.sleep(1)  # so that it is looked at once more
"""
CHILDREN = f"""{BURN}
child = {BURN!r} + "burn(float(sys.argv[3]))"
kinds = [("proxy", "0.4"), ("engine", "0.8"), ("agent", "0.3")]
command = [sys.executable, "-c", child, "gyre.cli.main"]
running = [subprocess.Popen([*command, kind, took]) for kind, took in kinds]
burn(0.5)
for one in running:
    one.wait()
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's modules; they are no part of the installed project."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield SimpleNamespace(
        **{name: import_module(f"benchmarks.live.{name}") for name in ("cpu", "report", "run")}
    )


def test_processes_are_told_apart_by_their_command(bench: Any) -> None:
    own = ["python", "-m", "gyre.cli.main"]
    assert bench.cpu.kind_of([*own, "proxy", "--port", "0"]) == "proxy"
    assert bench.cpu.kind_of(["python", "/venv/bin/gyre", "engine", "--model", "m"]) == "engine"
    assert bench.cpu.kind_of(["python3", "agent.py", "proxy"]) == "agents and scorers"
    assert bench.cpu.kind_of(["python", "-P", "-m", "gyre.proxy.log.sealing.seal", "logs"]) == "proxy"
    assert bench.cpu.kind_of([]) == "agents and scorers"


def test_cpu_time_is_that_of_whoever_spent_it(bench: Any) -> None:
    process = subprocess.Popen([sys.executable, "-c", CHILDREN])
    code, spent = bench.cpu.Watch(process).wait()
    process.returncode = code
    assert code == 0
    assert sum(spent.by_kind.values()) == pytest.approx(spent.total)
    # What is spent after the last look is lost to the kind and stays in the rest.
    assert 0.4 <= spent.by_kind["proxy"] < 0.8 <= spent.by_kind["engine"] < 1.3
    assert spent.by_kind["trainer"] >= 0.5
    assert spent.by_kind["agents and scorers"] >= 0.3


def test_a_run_that_fails_says_so(bench: Any) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    code, _ = bench.cpu.Watch(process).wait()
    process.returncode = code
    assert code == 3


def batch(number: int) -> dict[str, Any]:
    return {
        "kind": "batch",
        "update": number + 1,
        "batch": number,
        "executions": 8,
        "seconds/wait": 2.0,
        "seconds/train": 1.0 + number,
        "seconds/total": 3.0 + number,
        "group_seconds/max": 2.5,
        "group_seconds/scoring": 0.4,
        "group_seconds/tree": 0.1,
    }


def test_a_run_is_summed_up_from_its_metrics(bench: Any, tmp_path: Path) -> None:
    lines = [{"kind": "update", "update": 1}, batch(0), {"kind": "publication", "update": 1}, batch(1)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    spent = bench.cpu.Spent(
        total=10.0, by_kind={"trainer": 4.0, "proxy": 0.3, "engine": 4.0, "agents and scorers": 1.7}
    )
    run = bench.run.summed("tiny", tmp_path, spent, False)
    assert (run.batches, run.executions, run.rollout_s, run.scoring_s) == (2, 16, 2.5, 0.8)
    assert run.seconds == {"wait": 4.0, "train": 3.0}
    assert run.recording == pytest.approx(5.0)
    results = bench.report.Results([run])
    phases, processes = results.grids()
    assert phases.rows[0][:4] == ("tiny, 2 batches of 8 executions", "2.00", "1.50", "3.50")
    assert processes.rows[0][-1] == "5.0 %"


@pytest.mark.parametrize(("proxy", "met"), [(0.2, True), (0.5, False)])
def test_the_bar_is_on_proxy_and_tree_builder_together(bench: Any, proxy: float, met: bool) -> None:
    spent = bench.cpu.Spent(total=10.0, by_kind={"proxy": proxy})
    numbers = {"batches": 1, "executions": 1, "seconds": {}, "rollout_s": 0.0, "scoring_s": 0.0}
    run = bench.report.Live(name="tiny", short=False, tree_s=0.2, spent=spent, **numbers)
    (bar,) = bench.report.Results([run]).bars()
    assert bar.met is met
    short = bench.report.Live(name="tiny", short=True, tree_s=0.2, spent=spent, **numbers)
    assert bench.report.Results([short]).bars() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_measures_every_part() -> None:
    command = [sys.executable, "-m", "benchmarks", "--live", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=500)
    (run,) = json.loads(done.stdout)["live"]["runs"]
    assert run["batches"] == 2 and run["executions"] > 0
    assert {"wait", "train"} <= run["seconds"].keys()
    assert all(run["spent"]["by_kind"][kind] > 0 for kind in ("trainer", "proxy", "engine"))
