"""`gyre train RUN.toml` in two processes that torchrun started, of which the first one runs the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gyre.trainer.live.config import load_run
from gyre.trainer.live.status import Phase, Status, read_status
from tests.trainer.live.small_run import write_run
from tests.trainer.live.soundness import require_sound
from tests.trainer.update.torchrun import begin, finish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SLOW: dict[str, Any] = {"batches": 3, "look_ahead": 1.0, "sleep": 1.5}
"""Agents that live long enough to be met."""


def started(path: Path, *more: str) -> subprocess.Popen[str]:
    return begin("-m", "gyre.cli.main", "train", path, *more)


def alone(path: Path, *more: str) -> subprocess.Popen[str]:
    """The same in a single process."""
    return subprocess.Popen(
        [sys.executable, "-m", "gyre.cli.main", "train", str(path), *more],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def status_of(path: Path) -> Status:
    status = read_status(path.parent / "out")
    assert status is not None
    return status


def when(path: Path, run: subprocess.Popen[str], holds: Callable[[Status], bool]) -> None:
    """Wait until the run says so of itself."""
    end = time.monotonic() + 240
    while time.monotonic() < end and run.poll() is None:
        status = read_status(path.parent / "out")
        if status is not None and holds(status):
            return
        time.sleep(0.02)
    run.terminate()
    raise AssertionError(f"the run never came to it:\n{run.communicate(timeout=60)[0]}")


def agents_run(status: Status) -> bool:
    return status.batches_done >= 1 and status.executions.running > 0


def require_end(path: Path, run: subprocess.Popen[str]) -> None:
    code, output = finish(run, 500)
    assert code == 0, output
    assert (output.count("serve it:"), "Warning" in output) == (1, False), output
    require_sound(load_run(path, {}))


def test_a_run_comes_to_its_end(tmp_path: Path) -> None:
    path = write_run(tmp_path, batches=2, updates=2)
    require_end(path, started(path))


def test_all_are_killed_while_agents_run_and_it_goes_on(tmp_path: Path) -> None:
    path = write_run(tmp_path, **SLOW)
    run = started(path)
    when(path, run, agents_run)
    mine = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for each in mine:
        each.kill()
    run.communicate(timeout=60)
    assert psutil.wait_procs(mine, timeout=60)[1] == []
    require_end(path, started(path, "--resume"))


def test_the_other_is_killed_and_the_run_goes_on_in_one_process(tmp_path: Path) -> None:
    """Torchrun ends the main process then, as Ctrl-C does: what it has is on the disk."""
    path = write_run(tmp_path, **SLOW)
    run = started(path)
    when(path, run, agents_run)
    for each in psutil.Process(run.pid).children():
        if each.environ()["RANK"] == "1":
            each.kill()
    code, output = finish(run)
    assert code != 0 and "error: another process of this run has ended" in output
    assert status_of(path).phase is Phase.FAILED
    require_end(path, alone(path, "--resume"))


def test_ctrl_c_ends_both_and_the_run_goes_on(tmp_path: Path) -> None:
    path = write_run(tmp_path, **SLOW)
    run = started(path)
    when(path, run, agents_run)
    run.send_signal(signal.SIGINT)
    code, output = finish(run)
    assert code != 0 and "interrupted" in output and "error:" not in output, output
    assert status_of(path).phase is Phase.INTERRUPTED
    require_end(path, started(path, "--resume"))


def test_an_error_of_the_main_process_is_told_once_and_ends_both(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    (tmp_path / "agent.py").write_text("raise SystemExit(3)\n")
    code, output = finish(started(path))
    assert (code, output.count("error:")) == (1, 1), output
    assert "got an answer" in status_of(path).error


def test_an_error_of_the_other_is_told_and_ends_both(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    code, output = finish(begin("-m", "tests.trainer.live.planted", path))
    assert code != 0 and "error: as planted" in output, output
    assert status_of(path).phase is Phase.FAILED
    require_end(path, started(path, "--resume"))
