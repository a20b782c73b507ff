"""`make demo` as a process: an unmodified agent, a real model, a log that is proven."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import psutil
import pytest

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
    files = f"{tmp_path}/demo-logs/calls/*.parquet"
    query = (
        'SELECT stream, prompt_tokens, prompt_shared, len(output_ids) FROM read_parquet(?) ORDER BY "order"'
    )
    rows = duckdb.execute(query, [files]).fetchall()
    assert [row[0] for row in rows] == [True, False, True, False, True, False, True]
    assert all(shared > 0 for _, _, shared, _ in rows[2:])
    assert all(earlier[1] < later[1] for earlier, later in zip(rows, rows[2:], strict=False))
    assert all(sampled > 0 for *_, sampled in rows)


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
