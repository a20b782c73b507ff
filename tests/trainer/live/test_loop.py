"""The loop as a whole: a real engine, a real proxy, real agents, a real trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from gyre.trainer.errors import TrainError, UnusableError
from gyre.trainer.live.status import Phase, Status, read_status
from gyre.trainer.live.watch import LiveWatch
from gyre.trainer.loop import run
from gyre.trainer.rollout.state import State, load
from gyre.trainer.update.metrics import read_lines
from tests.trainer.live.small_run import small_run, write_tasks
from tests.trainer.live.soundness import require_sound


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_run_comes_to_its_end(tmp_path: Path) -> None:
    settings = small_run(tmp_path, batches=2, every=1)
    seen = Seen()
    outcome = run(settings, tmp_path / "out", watch=LiveWatch(status=seen))
    assert (outcome.batches, outcome.updates, outcome.interrupted) == (2, 2, False)
    assert seen.over == [(Phase.ENDED, False)]
    assert outcome.final == tmp_path / "out" / "final"
    assert [one.version for one in outcome.evaluations] == ["0", "1", "2"]
    require_sound(settings)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """With look-ahead, so that groups are on their way when it is stopped."""
    settings = small_run(tmp_path, batches=3, look_ahead=1.0)
    stopped = Stops(after=1)
    outcome = run(settings, tmp_path / "out", watch=stopped.watch)
    assert outcome.interrupted and outcome.batches == 1 and outcome.final is None
    before = executions(tmp_path)
    outcome = run(settings, tmp_path / "out", resume=True, watch=stopped_once_engines_are_there(tmp_path))
    assert outcome.interrupted and outcome.batches == 1 and len(outcome.evaluations) == 1
    assert executions(tmp_path) == before
    outcome = run(settings, tmp_path / "out", resume=True)
    assert (outcome.batches, outcome.updates, outcome.interrupted) == (3, 3, False)
    require_sound(settings)
    told = [line for line in read_lines(tmp_path / "out" / "metrics.jsonl") if line["kind"] == "batch"]
    assert max(line["staleness/max"] for line in told) <= 1


def test_a_run_does_not_go_on_with_other_tasks(tmp_path: Path) -> None:
    settings = small_run(tmp_path, batches=2)
    assert run(settings, tmp_path / "out", watch=Stops(after=1).watch).interrupted
    assert len(executions(tmp_path)) == 6 + 2  # of one batch, and an evaluation
    write_tasks(tmp_path / "tasks", "hill")
    with pytest.raises(TrainError, match=r"started with other tasks; new: `.*/tasks/hill`"):
        run(settings, tmp_path / "out", resume=True)
    status = read_status(tmp_path / "out")
    assert status is not None and (status.phase, status.batches_done) == (Phase.FAILED, 1)


def test_nothing_is_dispatched_after_a_stop(tmp_path: Path) -> None:
    settings = small_run(tmp_path)
    seen = Seen()
    watch = replace(stopped_once_engines_are_there(tmp_path), status=seen)
    outcome = run(settings, tmp_path / "out", watch=watch)
    assert outcome.interrupted and outcome.batches == 0
    assert executions(tmp_path) == {}
    assert seen.over == [(Phase.INTERRUPTED, False)]


def test_a_run_whose_agents_do_not_work_ends_and_goes_on_once_they_are_mended(tmp_path: Path) -> None:
    settings = small_run(tmp_path, batches=1)
    agent = tmp_path / "agent.py"
    working = agent.read_text()
    agent.write_text("import sys; sys.exit('no such model')")
    with pytest.raises(UnusableError, match=r"none of the 6 executions .* no such model"):
        run(settings, tmp_path / "out")
    status = read_status(tmp_path / "out")
    assert status is not None and status.phase is Phase.FAILED and "none of the 6" in status.error
    agent.write_text(working)
    outcome = run(settings, tmp_path / "out", resume=True)
    assert outcome.batches == 1
    assert [one.episodes for one in outcome.evaluations] == [2, 2]
    require_sound(settings)


def executions(folder: Path) -> dict[str, State]:
    found = {place.name: load(place) for place in (folder / "out" / "executions").glob("*")}
    return {name: state for name, state in found.items() if state is not None}


def stopped_once_engines_are_there(folder: Path) -> LiveWatch:
    """The proxy's file is written when they are."""
    file = folder / "out" / "services" / "proxy.toml"
    file.unlink(missing_ok=True)
    return LiveWatch(stop=file.exists)


class Seen:
    """Whoever watches the status. `over`: what was told of the end, and whether services ran then."""

    def __init__(self) -> None:
        self.over: list[tuple[Phase, bool]] = []

    def __call__(self, status: Status) -> None:
        if status.phase.over:
            words = [word for each in psutil.Process().children(recursive=True) for word in each.cmdline()]
            self.over.append((status.phase, "gyre.cli.main" in words))


class Stops:
    """A user who has seen enough after so many batches."""

    def __init__(self, after: int) -> None:
        self._left = after
        self.watch = LiveWatch(stop=lambda: self._left <= 0, publication=self._seen)

    def _seen(self, _: object) -> None:
        self._left -= 1
