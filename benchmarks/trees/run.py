"""Measures trees: each size in processes of its own, one after another."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.material import make_text
from benchmarks.processes import ROOT, module
from benchmarks.trees.cases import CASES, Case
from benchmarks.trees.logs import write_log
from benchmarks.trees.long_run import Plan, Size, long_run, size_of
from benchmarks.trees.report import CaseResult, FromLog, FromMemory, Results
from benchmarks.trees.story import Turn, World
from gyre.treebuilder import build_trees, read_trees
from gyre.treebuilder.summary import ExecutionSummary

SCALES = (0.25, 0.5, 0.75, 1.0)
GROUP = 16


@dataclass(frozen=True)
class Measured:
    """What a process printed, and the CPU it took from its start to its end."""

    printed: dict[str, Any]
    cpu_s: float


def measure(
    scratch: Path,
    rounds: int,
    plan: Plan | None = None,
    scales: Sequence[float] = SCALES,
    group: int = GROUP,
) -> Results:
    plan = plan or Plan()
    results = Results()
    for scale in scales:
        say(f"token tree in memory, scale {scale:g}")
        options = ("--scale", f"{scale}", "--rounds", f"{rounds}", "--plan", json.dumps(asdict(plan)))
        results.memory.append(FromMemory(**run("benchmarks.trees.from_memory", *options).printed))
    for scale in scales:
        say(f"log to trees, scale {scale:g}")
        results.logs.append(from_log(scratch / f"group-{scale:g}", plan, scale, rounds, group))
    say("cases")
    results.cases = case_results(scratch / "cases")
    return results


def from_log(folder: Path, plan: Plan, scale: float, rounds: int, group: int) -> FromLog:
    """A group's log is made, built from `rounds` times, and removed."""
    logged = make_group(folder / "log", plan.scaled(scale), group)
    done = []
    for number in range(1 + rounds):
        done.append(run("benchmarks.trees.from_log", str(folder / "log"), str(folder / f"trees-{number}")))
    # The first one pays for memory that a virtual machine had given back to its host, up to a second.
    del done[0]
    summaries = read_trees(folder / "trees-0").executions()
    made = FromLog(
        scale=scale,
        executions=len(summaries),
        calls=sum(summary.calls for summary in summaries),
        logged_tokens=logged.size.logged,
        new_tokens=logged.size.new,
        log_bytes=bytes_in(folder / "log"),
        tree_bytes=bytes_in(folder / "trees-0"),
        build_s=[one.printed["build_s"] for one in done],
        system_s=[one.printed["system_s"] for one in done],
        whole_s=[one.cpu_s for one in done],
        peak_bytes=max(one.printed["peak_bytes"] for one in done),
        delivered=sum(summary.targets for summary in summaries) / logged.trainable,
        kept=kept(summaries),
    )
    shutil.rmtree(folder)
    return made


@dataclass(frozen=True)
class Logged:
    size: Size
    trainable: int
    """Sampled tokens of calls that may be trained."""


def make_group(log: Path, plan: Plan, group: int) -> Logged:
    text = make_text(plan.text_tokens)
    runs = [list(long_run(f"run-{number:02}", number, text, plan)) for number in range(group)]
    write_log(log, runs, "group")
    for path in files_in(log):
        path.read_bytes()  # into the page cache: reading a disk is not what is measured
    sampled = sum(len(turn.output) for turns in runs for turn in trainable(turns))
    return Logged(size_of([turn for turns in runs for turn in turns]), sampled)


def case_results(folder: Path) -> list[CaseResult]:
    text = make_text(200_000)
    runs = [list(case.turns(World(f"case-{place}", place, text))) for place, case in enumerate(CASES)]
    write_log(folder / "log", runs)
    build_trees(folder / "log", folder / "trees")
    summaries = {summary.execution_id: summary for summary in read_trees(folder / "trees").executions()}
    return [
        case_result(case, summaries[turns[0].execution], turns)
        for case, turns in zip(CASES, runs, strict=True)
    ]


def case_result(case: Case, summary: ExecutionSummary, turns: Sequence[Turn]) -> CaseResult:
    return CaseResult(
        name=case.name,
        calls=summary.calls,
        peer_percent=case.peer_percent,
        delivered=summary.targets / sum(len(turn.output) for turn in trainable(turns)),
        kept=summary.kept_share,
        contexts=summary.contexts,
        quarantined=summary.quarantined,
    )


def trainable(turns: Sequence[Turn]) -> list[Turn]:
    """Whole answers, but not those whose request came again with a mark that says so."""
    again = {before.call_id for before, turn in pairwise(turns) if turn.retry_count}
    return [turn for turn in turns if turn.outcome == "ok" and turn.call_id not in again]


def kept(summaries: Sequence[ExecutionSummary]) -> float:
    return sum(summary.kept_targets for summary in summaries) / max(1, sum(s.targets for s in summaries))


def run(name: str, *arguments: str) -> Measured:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(module(name, *arguments), cwd=ROOT, check=True, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(json.loads(done.stdout), cpu_s)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_in(folder))


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)
