"""Runs the quickstart's tiny run for a few batches, and says where its time went."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.live.cpu import Spent, Watch
from benchmarks.live.report import Live, Results
from benchmarks.processes import ROOT
from gyre.trainer.live.config import load_run, run_toml
from gyre.trainer.live.settings import EvaluationTable
from gyre.trainer.live.split import split_of

EXAMPLE = ROOT / "examples" / "quickstart"
RUN_FILE, TASKS = "tiny.toml", ("tasks.py", "tiny")
BATCHES, FEW = 6, 2
QUIET = {"HF_HUB_OFFLINE": "1"}


def measure(scratch: Path, *, short: bool = False) -> Results:
    """`short`: two small batches, without a bar."""
    example = scratch / "quickstart"
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("runs", "out"))
    subprocess.run([sys.executable, *TASKS], cwd=example, check=True, stdout=subprocess.DEVNULL)
    path = write_run_file(example / RUN_FILE, scratch / "run", short)
    print(f"  live: {path.name}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "gyre.cli.main", "train", str(path), "--unsafe-local", "--quiet"]
    process = subprocess.Popen(command, cwd=scratch, env=os.environ | QUIET, stdout=subprocess.DEVNULL)
    watch = Watch(process)
    code, spent = watch.wait()
    process.returncode = code
    if code:
        raise RuntimeError(f"the run ended with exit status {code}; see above")
    return Results([summed("tiny", scratch / "run", spent, short)])


def write_run_file(path: Path, out: Path, short: bool) -> Path:
    """The example's, with few batches and no evaluation."""
    settings = load_run(path, {"out": str(out)})
    batches = FEW if short else BATCHES
    group_size = 4 if short else settings.rollout.group_size
    rollout = msgspec.structs.replace(settings.rollout, batches=batches, group_size=group_size)
    settings = msgspec.structs.replace(settings, rollout=rollout, evaluation=EvaluationTable())
    made = path.with_name("measured.toml")
    made.write_text(run_toml(settings))
    return made


def summed(name: str, folder: Path, spent: Spent, short: bool) -> Live:
    """From the metrics of a run that has ended."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    batches = [line for line in lines if line["kind"] == "batch"]
    found = split_of(batches)
    return Live(
        name=name,
        short=short,
        batches=found.batches,
        executions=sum(line["executions"] for line in batches),
        seconds=dict(found.seconds),
        rollout_s=found.rollout_s,
        scoring_s=found.scoring_s,
        tree_s=found.tree_s,
        spent=spent,
    )
