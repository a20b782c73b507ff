"""`make demo` as a process: an unmodified agent, a real model, a log that is proven."""

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

DEMO = str(Path(__file__).parents[1] / "examples" / "demo" / "run.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


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
    assert all(row["prompt_shared"] > 0 for row in rows[2:])
    lengths = [row["prompt_tokens"] for row in rows]
    assert all(earlier < later for earlier, later in zip(lengths, lengths[2:], strict=False))
    assert all(row["output_ids"] for row in rows)


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
    old = tmp_path / "demo-logs" / "calls" / "old.parquet"
    old.parent.mkdir(parents=True)
    old.touch()
    process = start(tmp_path)
    while old.exists():
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=60)
