"""SIGKILL to whatever a run is made of: the run itself goes on, or `--resume` does, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gyre.trainer.live.config import load_run
from gyre.trainer.live.status import Phase, read_status
from gyre.trainer.live.status import Status as RunStatus
from gyre.trainer.rollout.state import State, Status, load
from tests.trainer.live.driver import kill
from tests.trainer.live.small_run import write_run
from tests.trainer.live.soundness import require_sound

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
LONG: dict[str, Any] = {"batches": 3, "look_ahead": 1.0}
SLOW = LONG | {"sleep": 1.5}
"""Agents that live long enough to be met."""


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
    with killing(path, "trainer", point, number) as process:
        assert process.wait(500) == -signal.SIGKILL, said(path)
    go_on(path)


@pytest.mark.parametrize("victim", ["trainer", "group"])
def test_the_trainer_is_killed_while_agents_run(tmp_path: Path, victim: str) -> None:
    path = write_run(tmp_path, **SLOW)
    with started(path) as process:
        when(path, process, agents_run)
        mine = psutil.Process(process.pid).children(recursive=True)
        kill(psutil.Process(process.pid), victim)
        process.wait()
        require_gone(mine)
    go_on(path)


@pytest.mark.parametrize("point", ["piece", "publication saved"])
def test_the_process_group_is_killed(tmp_path: Path, point: str) -> None:
    """In training and in publication, while other agents run."""
    path = write_run(tmp_path, **SLOW)
    with killing(path, "group", point, 2) as process:
        assert process.wait(500) == -signal.SIGKILL, said(path)
    go_on(path)


@pytest.mark.parametrize("victim", ["engine", "proxy", "agent"])
@pytest.mark.parametrize("point", ["piece", "publication saved"])
def test_another_is_killed_and_the_run_goes_on(tmp_path: Path, point: str, victim: str) -> None:
    """In training and in publication, while agents run."""
    path = write_run(tmp_path, **SLOW)
    with killing(path, victim, point, 2) as process:
        require_end(path, process, victim)


@pytest.mark.parametrize("victim", ["engine", "proxy", "agent"])
def test_another_is_killed_while_agents_run_and_the_run_goes_on(tmp_path: Path, victim: str) -> None:
    path = write_run(tmp_path, **SLOW)
    with started(path) as process:
        when(path, process, agents_run)
        kill(psutil.Process(process.pid), victim)
        require_end(path, process, victim)


def test_the_engine_is_killed_while_it_takes_up_weights(tmp_path: Path) -> None:
    path = write_run(tmp_path, **LONG)
    with started(path) as process:
        when(path, process, lambda status: status.phase is Phase.PUBLISHING and status.batches_done >= 1)
        kill(psutil.Process(process.pid), "engine")
        require_end(path, process, "engine")


# -- what is started, waited for and looked at -------------------------------------------------------------


@contextmanager
def started(path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, so that the group may be killed."""
    command = [sys.executable, "-m", "tests.trainer.live.driver", str(path), *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with (path.parent / "said.txt").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def killing(
    path: Path, victim: str, point: str, number: int
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A run that kills one of its processes when it comes to a point for the nth time."""
    return started(path, "--kill-at", point, "--number", str(number), "--victim", victim)


def when(path: Path, process: subprocess.Popen[bytes], holds: Callable[[RunStatus], bool]) -> None:
    """Wait until the run says so of itself."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        assert process.poll() is None, said(path)
        status = read_status(path.parent / "out")
        if status is not None and holds(status):
            return
        time.sleep(0.02)
    raise AssertionError("the run never came to it")


def agents_run(status: RunStatus) -> bool:
    return status.phase is Phase.ROLLOUT and status.batches_done >= 1 and status.executions.running > 0


def go_on(path: Path) -> None:
    """With `--resume` to the end; what had ended is not run or scored again."""
    before = {state.execution: state for state in executions(path) if state.status is Status.DONE}
    assert before
    with started(path, "--resume") as process:
        assert process.wait(500) == 0, said(path)
    require_sound(load_run(path, {}))
    after = {state.execution: state for state in executions(path)}
    assert [name for name in before if attempt_of(after[name]) != attempt_of(before[name])] == []


def require_end(path: Path, process: subprocess.Popen[bytes], victim: str) -> None:
    """The run has come to its end by itself, with nothing lost or trained twice."""
    assert process.wait(500) == 0, said(path)
    status = read_status(path.parent / "out")
    assert status is not None and status.phase is Phase.ENDED
    assert (sum(status.restarts.values()) >= 1) == (victim != "agent")
    require_sound(load_run(path, {}), killed=int(victim == "agent"))


def require_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=60)
    assert left == []


def said(path: Path) -> str:
    return (path.parent / "said.txt").read_text()[-2000:]


def executions(path: Path) -> list[State]:
    found = map(load, (path.parent / "out" / "executions").iterdir())
    return [state for state in found if state is not None]


def attempt_of(state: State) -> tuple[int, float | None, float]:
    """What would be another one, had it been run or scored again."""
    return state.attempt, state.score, state.seconds
