"""Room that executions take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gyre.trainer.live.jobs import Jobs, load_jobs
from gyre.trainer.live.settings import EvaluationTable, TaskTable
from gyre.trainer.live.trimming import SMALL, Trimming, trim
from gyre.trainer.rollout.job import Options
from tests.trainer.live.small_run import write_tasks


def execution(folder: Path, *, output: int = 10) -> Path:
    for name in ("workspace/src", "home/.cache", "scorer/try-1"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    for name in ("execution.json", "instruction.md", "lock"):
        (folder / name).write_text("{}")
    (folder / "stdout.txt").write_text("x" * output)
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


STAYS = {"execution.json", "instruction.md", "lock", "scorer", "stdout.txt"}


def test_what_is_small_stays(tmp_path: Path) -> None:
    folder = execution(tmp_path / "e")
    (folder / "workspace" / "link").symlink_to(tmp_path)
    execution(folder / "attempt-1", output=SMALL + 1)
    (folder / "attempt-1" / "scorer" / "try-1" / "stdout.txt").write_text("x" * (SMALL + 1))
    for _ in range(2):
        trim(folder)
        assert names(folder) == STAYS | {"attempt-1"}
        assert names(folder / "attempt-1") == STAYS - {"scorer", "stdout.txt"}
    assert (folder / "scorer" / "try-1" / "file").read_text() == "x"
    trim(tmp_path / "none")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    tables = (TaskTable(folder=str(write_tasks(tmp_path / "tasks", "river", "stone"))),)
    options = Options(runs=tmp_path / "executions", command=["agent"])
    return load_jobs(tables, EvaluationTable(), options, size=2, seed=0)


def made(jobs: Jobs, groups: Iterable[int]) -> None:
    for index in groups:
        for job in jobs.of_group(jobs.group(index, burst=0, version="0")).jobs:
            execution(jobs.options.runs / job.name)


def whole(jobs: Jobs) -> set[int]:
    return {int(path.name[1:7]) for path in jobs.options.runs.iterdir() if (path / "workspace").exists()}


def test_the_newest_that_were_trained_and_those_on_their_way_are_whole(jobs: Jobs) -> None:
    made(jobs, range(8))
    with Trimming(jobs, 2) as trimming:
        trimming.published(2, [1])
        trimming.published(6, [1, 5])
    assert whole(jobs) == {1, 3, 4, 5, 6, 7}
    with Trimming(jobs, 2) as trimming:
        trimming.published(8, [5])
    assert whole(jobs) == {5, 6, 7}


def test_a_group_that_waited_is_trimmed_in_its_time(jobs: Jobs) -> None:
    made(jobs, range(4))
    with Trimming(jobs, 1) as trimming:
        trimming.published(4, [0])
        trimming.published(4, [])
    assert whole(jobs) == {0}


def test_what_cannot_be_removed_is_told(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    made(jobs, range(1))
    monkeypatch.setattr("gyre.trainer.live.trimming.remove_tree", _refuse)
    told: list[str] = []
    with Trimming(jobs, 0, told.append) as trimming:
        trimming.published(1, [])
    assert len(told) == 1 and "takes room that could not be freed: busy" in told[0]


def _refuse(path: Path) -> None:
    raise OSError("busy")
