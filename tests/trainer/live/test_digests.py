"""Tasks between a run's start and its going on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.trainer.errors import TrainError
from gyre.trainer.live.digests import Tasks, require_same_tasks, tasks_of
from gyre.trainer.live.jobs import load_jobs
from gyre.trainer.live.settings import EvaluationTable, TaskTable
from gyre.trainer.rollout.job import Options
from tests.trainer.live.small_run import write_tasks


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    write_tasks(tmp_path / "train", "river", "stone")
    write_tasks(tmp_path / "held-out", "lantern")
    return tmp_path


def found(lists: Path) -> Tasks:
    evaluation = EvaluationTable(tasks=(TaskTable(folder=str(lists / "held-out")),), episodes=2)
    tables = (TaskTable(folder=str(lists / "train")),)
    options = Options(runs=lists / "executions", command=["agent"])
    return tasks_of(load_jobs(tables, evaluation, options, size=2, seed=0))


def told(before: Tasks, now: Tasks) -> list[str]:
    said: list[str] = []
    require_same_tasks(before, now, said.append)
    return said


def test_nothing_is_said_of_tasks_that_are_the_same(lists: Path) -> None:
    assert told(found(lists), found(lists)) == []


def test_tasks_that_come_or_go_are_refused_by_name(lists: Path) -> None:
    before = found(lists)
    write_tasks(lists / "train", "cloud")
    (lists / "train" / "river").rename(lists / "river")
    with pytest.raises(TrainError) as caught:
        told(before, found(lists))
    new, gone = lists / "train" / "cloud", lists / "train" / "river"
    assert caught.value.message == f"the run was started with other tasks; new: `{new}`; gone: `{gone}`"


def test_a_task_that_says_something_else_is_told(lists: Path) -> None:
    before = found(lists)
    (lists / "train" / "stone" / "tests" / "test.sh").write_text("echo 1")
    said = told(before, found(lists))
    assert said == [f"tasks are not what they were when the run was started: `{lists / 'train' / 'stone'}`"]


@pytest.mark.parametrize("change", ["another", "file"])
def test_another_evaluation_is_told(lists: Path, change: str) -> None:
    before = found(lists)
    if change == "another":
        write_tasks(lists / "held-out", "harbour")
    else:
        (lists / "held-out" / "lantern" / "instruction.md").write_text("Write about something else.")
    (said,) = told(before, found(lists))
    assert said.startswith("what is evaluated on is not what it was") and str(lists / "held-out") in said


def test_a_link_is_where_it_leads(lists: Path) -> None:
    link = lists / "train" / "stone" / "data"
    link.symlink_to("one")
    before = found(lists)
    link.unlink()
    link.symlink_to("two")
    assert len(told(before, found(lists))) == 1
