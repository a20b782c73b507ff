"""SIGKILL to whatever a run is made of: the run itself goes on, or `--resume` does, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gyre.trainer.live.config import load_run
from gyre.trainer.live.status import Phase, read_status
from gyre.trainer.live.status import Status as RunStatus
from gyre.trainer.rollout.state import State, Status, load
from tests.trainer.live.small_run import write_run
from tests.trainer.live.soundness import require_sound

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
LONG: dict[str, Any] = {"batches": 3, "look_ahead": 1.0}
SLOW = LONG | {"sleep": 1.5}
"""Agents that live long enough to be met."""


def command(path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.trainer.live.driver", str(path), *arguments]


@contextmanager
def started(path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, so that the group may be killed."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with (path.parent / "said.txt").open("ab") as said:
        process = subprocess.Popen(
            command(path, *arguments),
            cwd=ROOT,
            env=env,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def finish(path: Path, *arguments: str) -> None:
    with started(path, *arguments) as process:
        assert process.wait(500) == 0, (path.parent / "said.txt").read_text()[-2000:]
    require_sound(load_run(path, {}))


def when(path: Path, process: subprocess.Popen[bytes], holds: Callable[[RunStatus], bool]) -> None:
    """Wait until the run says so of itself."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        assert process.poll() is None, (path.parent / "said.txt").read_text()[-2000:]
        status = read_status(path.parent / "out")
        if status is not None and holds(status):
            return
        time.sleep(0.02)
    raise AssertionError("the run never came to it")


def child(process: subprocess.Popen[bytes], wanted: Callable[[list[str]], bool]) -> psutil.Process:
    """One of its processes with such a command line."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for each in psutil.Process(process.pid).children(recursive=True):
            try:
                if wanted(each.cmdline()):
                    return each
            except psutil.Error:
                continue
        time.sleep(0.02)
    raise AssertionError("there is no such process")


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("piece", 2),
        ("step", 2),
        ("checkpoint before rename", 2),
        ("checkpoint renamed", 3),
        ("publication saved", 2),
        ("published", 2),
    ],
)
def test_the_trainer_is_killed(tmp_path: Path, point: str, number: int) -> None:
    """In the middle of training and of publication. Executions that had ended are not run again."""
    path = write_run(tmp_path, **LONG)
    with started(path, "--kill-at", point, "--number", str(number)) as process:
        assert process.wait(500) == -signal.SIGKILL, (tmp_path / "said.txt").read_text()[-2000:]
    before = {state.execution: state for state in executions(tmp_path) if state.status is Status.DONE}
    assert before
    finish(path, "--resume")
    after = {state.execution: state for state in executions(tmp_path)}
    assert [name for name in before if attempt_of(after[name]) != attempt_of(before[name])] == []


def executions(folder: Path) -> list[State]:
    found = map(load, (folder / "out" / "executions").iterdir())
    return [state for state in found if state is not None]


def attempt_of(state: State) -> tuple[int, float | None, float]:
    """What would be another one, had it been run or scored again."""
    return state.attempt, state.score, state.seconds


def test_the_process_group_is_killed_while_agents_run(tmp_path: Path) -> None:
    path = write_run(tmp_path, **SLOW)
    with started(path) as process:
        when(path, process, lambda status: status.batches_done >= 1 and status.executions.running > 0)
        mine = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _, left = psutil.wait_procs(mine, timeout=60)
        assert left == []
    finish(path, "--resume")


@pytest.mark.parametrize("name", ["engine", "proxy"])
def test_a_service_is_killed_and_the_run_goes_on(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path, **SLOW)
    with started(path) as process:
        when(path, process, lambda status: status.batches_done >= 1 and status.executions.running > 0)
        child(process, lambda line: line[2:4] == ["gyre.cli.main", name]).kill()
        assert process.wait(500) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    status = read_status(tmp_path / "out")
    assert status is not None and status.phase is Phase.ENDED
    assert sum(status.restarts.values()) >= 1
    require_sound(load_run(path, {}))


def test_the_engine_is_killed_during_a_publication(tmp_path: Path) -> None:
    path = write_run(tmp_path, **LONG)
    with started(path) as process:
        when(path, process, lambda status: status.phase is Phase.PUBLISHING and status.batches_done >= 1)
        child(process, lambda line: line[2:4] == ["gyre.cli.main", "engine"]).kill()
        assert process.wait(500) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    require_sound(load_run(path, {}))


def test_an_agent_is_killed_and_costs_its_execution_only(tmp_path: Path) -> None:
    path = write_run(tmp_path, **SLOW)
    with started(path) as process:
        when(path, process, lambda status: status.executions.running > 0)
        child(process, lambda line: any(word.endswith("agent.py") for word in line)).kill()
        assert process.wait(500) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    status = read_status(tmp_path / "out")
    assert status is not None and status.phase is Phase.ENDED
