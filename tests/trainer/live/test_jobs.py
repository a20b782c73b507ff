"""From numbers to executions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.proxy.identity import NAME
from gyre.trainer.errors import TrainError
from gyre.trainer.live.jobs import episodes, load_jobs
from gyre.trainer.live.settings import EvaluationTable, TaskTable
from gyre.trainer.rollout.job import Options
from gyre.trainer.rollout.state import State, Status, load, save
from gyre.trainer.rollout.task import TaskError, load_task


def task(folder: Path, *, scored: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text("")
    (folder / "instruction.md").write_text("Do it.")
    if scored:
        (folder / "tests").mkdir()
        (folder / "tests" / "test.sh").write_text("echo 1")
    return folder


def options(tmp_path: Path) -> Options:
    return Options(runs=tmp_path / "executions", command=["agent"])


def test_a_group_is_n_executions_of_one_task_under_names_that_stay(tmp_path: Path) -> None:
    for name in ("a", "b"):
        task(tmp_path / "tasks" / name)
    tables = (TaskTable(folder=str(tmp_path / "tasks")),)
    jobs = load_jobs(tables, EvaluationTable(), options(tmp_path), size=3, seed=0)
    group = jobs.group(12, burst=4, version="2")
    assignment = jobs.of_group(group)
    assert assignment.key == "g000012" and not assignment.urgent
    name = group.task.short_name
    assert [job.name for job in assignment.jobs] == [f"g000012-{name}-{number}" for number in range(3)]
    assert {job.group for job in assignment.jobs} == {"g000012"}
    assert assignment.options.evaluation is None


def test_an_evaluation_is_urgent_marked_and_sampled_in_its_own_way(tmp_path: Path) -> None:
    task(tmp_path / "train" / "a")
    task(tmp_path / "held-out" / "b")
    evaluation = EvaluationTable(tasks=(TaskTable(folder=str(tmp_path / "held-out")),), episodes=2)
    tables = (TaskTable(folder=str(tmp_path / "train")),)
    jobs = load_jobs(tables, evaluation, options(tmp_path), size=2, seed=0)
    assignment = jobs.of_evaluation("eval-000003-greedy", 0.0)
    assert assignment.urgent and assignment.options.evaluation
    assert assignment.options.pin is not None and assignment.options.pin.temperature == 0.0
    assert [job.name for job in assignment.jobs] == ["eval-000003-greedy-0-b", "eval-000003-greedy-1-b"]


def test_what_ran_with_weights_that_are_gone_is_run_anew(tmp_path: Path) -> None:
    task(tmp_path / "tasks" / "a")
    tables = (TaskTable(folder=str(tmp_path / "tasks")),)
    jobs = load_jobs(tables, EvaluationTable(), options(tmp_path), size=1, seed=0)
    jobs.void_later(4, 12)  # nothing has run
    kept = ["g000011-a-0", "eval-000004-0-b", "other"]
    gone = ["eval-000005-greedy-0-b", "g000012-a-0", "g1000000-a-0"]
    for name in (*kept, *gone):
        save(jobs.options.runs / name, State(execution=name, status=Status.DONE))
    jobs.void_later(4, 12)
    found = (load(path) for path in jobs.options.runs.iterdir())
    assert sorted(one.execution for one in found if one and one.status is Status.INTERRUPTED) == gone


def test_names_of_tasks_however_long_make_names_of_executions(tmp_path: Path) -> None:
    task(tmp_path / "train" / ("long" * 60))
    task(tmp_path / "held-out" / ("\u00e9" * 120))
    evaluation = EvaluationTable(tasks=(TaskTable(folder=str(tmp_path / "held-out")),), episodes=11)
    tables = (TaskTable(folder=str(tmp_path / "train")),)
    jobs = load_jobs(tables, evaluation, options(tmp_path), size=11, seed=0)
    made = [*jobs.of_group(jobs.group(7, burst=0, version="0")).jobs]
    made += jobs.of_evaluation("eval-000003-greedy", 0.0).jobs
    names = [job.name for job in made]
    assert len(set(names)) == len(names) == 22
    assert all(NAME.fullmatch(name) for name in names)


def test_tasks_may_not_be_trained_and_evaluated_on(tmp_path: Path) -> None:
    task(tmp_path / "tasks" / "a")
    table = TaskTable(folder=str(tmp_path / "tasks"))
    with pytest.raises(TrainError, match="both trained and evaluated on"):
        load_jobs((table,), EvaluationTable(tasks=(table,)), options(tmp_path), size=2, seed=0)


def test_a_task_without_a_scorer_is_named(tmp_path: Path) -> None:
    task(tmp_path / "tasks" / "bare", scored=False)
    with pytest.raises(TaskError, match="bare"):
        load_jobs(
            (TaskTable(folder=str(tmp_path / "tasks")),), EvaluationTable(), options(tmp_path), size=2, seed=0
        )


def test_the_episodes_of_an_evaluation_are_drawn_once_and_by_its_own_seed(tmp_path: Path) -> None:
    tasks = [load_task(task(tmp_path / f"t{number}")) for number in range(5)]
    drawn = [one.short_name for one in episodes(tasks, EvaluationTable(episodes=12))]
    assert drawn == [one.short_name for one in episodes(tasks, EvaluationTable(episodes=12))]
    assert sorted(drawn[:5]) == ["t0", "t1", "t2", "t3", "t4"] and drawn[:5] == drawn[5:10]
    assert drawn != [one.short_name for one in episodes(tasks, EvaluationTable(episodes=12, seed=1))]
