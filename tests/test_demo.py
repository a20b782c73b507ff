"""`make demo` as a process: an unmodified agent, a real model, a log and its tree that are proven."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gyre.proxy import read_log
from gyre.trainer.update.metrics import read_lines
from gyre.treebuilder import read_trees

DEMO = str(Path(__file__).parents[1] / "examples" / "demo" / "run.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, DEMO],
        cwd=folder,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_records_a_run_and_proves_its_log(tmp_path: Path) -> None:
    process = start(tmp_path)
    text, _ = process.communicate()
    assert process.returncode == 0, text
    assert "all recorded data is as captured" in text
    rows = read_log(tmp_path / "demo-logs").calls.to_pylist()
    assert [row["stream"] for row in rows] == [True, False, True, False, True, False, True]
    assert all(row["prompt_shared"] > 0 for row in rows[2:6])
    assert all(row["output_ids"] for row in rows)
    assert "the trees are what the log says" in text
    trees = read_trees(tmp_path / "demo-trees")
    (summary,) = trees.executions()
    assert (summary.calls, summary.contexts, summary.score) == (7, 4, 0.1)
    assert summary.targets == summary.kept_targets == sum(len(row["output_ids"]) for row in rows)
    links = trees.tree("demo-1").links
    writer, editor = [0, 2, 4], [1, 3]
    assert [links[i].context_id for i in (*writer, *editor, 5, 6)] == [0, 0, 0, 1, 1, 2, 3]
    assert [(link.cause, link.step, link.role) for link in links[5:]] == [
        ("compaction", "summary", "main_summary"),
        ("compaction", "restart", "main"),
    ]
    before, after = [
        line for line in read_lines(tmp_path / "demo-run" / "metrics.jsonl") if line["kind"] == "evaluation"
    ]
    assert after["mean_score"] >= before["mean_score"] + 0.15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_stopped_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    assert process.stdout
    while "writer:" not in process.stdout.readline():
        assert process.poll() is None
    servers = psutil.Process(process.pid).children(recursive=True)
    assert len(servers) >= 2
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    _, alive = psutil.wait_procs(servers, timeout=10)
    assert alive == []


def test_a_second_run_starts_from_an_empty_folder(tmp_path: Path) -> None:
    logs = tmp_path / "demo-logs" / "calls" / "old.parquet"
    trees = tmp_path / "demo-trees" / "nodes" / "old.parquet"
    for old in (logs, trees):
        old.parent.mkdir(parents=True)
        old.touch()
    process = start(tmp_path)
    while logs.exists() or trees.exists():
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=60)
