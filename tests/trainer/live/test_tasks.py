"""Lists of tasks: whatever is wrong with them is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.trainer.live.tasks import tasks_in
from gyre.trainer.rollout.job import Options
from gyre.trainer.rollout.task import TaskError


def make_task(folder: Path, *, scored: bool = True) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").touch()
    (folder / "instruction.md").write_text("Do it.\n")
    if scored:
        (folder / "tests" / "test.sh").write_text("echo 1 > reward.txt\n")
    return folder


def refusal(folder: Path, options: Options) -> str:
    with pytest.raises(TaskError) as caught:
        tasks_in(folder, options)
    return caught.value.message


def test_all_tasks_of_a_list_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_task(tmp_path / name)
    assert [task.name for task in tasks_in(tmp_path, Options(runs=tmp_path))] == ["a", "b"]


def test_every_task_without_a_scorer_is_named(tmp_path: Path) -> None:
    options = Options(runs=tmp_path)
    make_task(tmp_path / "good")
    bad = make_task(tmp_path / "bad", scored=False)
    assert refusal(tmp_path, options) == f"task `{bad}` has no `tests/test.sh`"
    worse = make_task(tmp_path / "worse", scored=False)
    told = refusal(tmp_path, options)
    assert told.startswith("2 tasks cannot be run:\n") and str(bad) in told and str(worse) in told
    assert len(tasks_in(tmp_path, Options(runs=tmp_path, score="echo 1"))) == 3


def test_of_many_the_first_are_named(tmp_path: Path) -> None:
    for number in range(8):
        make_task(tmp_path / str(number), scored=False)
    assert refusal(tmp_path, Options(runs=tmp_path)).splitlines()[-1] == "  and 3 more"
