"""The tasks of `examples/tasks`: they run without a container, their solutions score 1, nothing scores 0."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gyre.trainer.rollout.score import own_scorer, run_scorer
from gyre.trainer.rollout.task import find_tasks, load_task, prepare

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
TASKS = find_tasks(EXAMPLES)


def score(folder: Path, workspace: Path, logs: Path) -> tuple[float | None, str]:
    task = load_task(folder)
    verdict = run_scorer(own_scorer(task, os.environ), workspace, logs, task.verifier_timeout_s)
    return verdict.score, verdict.reason


def test_there_are_some() -> None:
    assert [folder.name for folder in TASKS] == [
        "count-words",
        "fix-the-sum",
        "rename-files",
        "reverse-lines",
    ]


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_a_solution_scores_one_and_is_needed(folder: Path, tmp_path: Path) -> None:
    task = load_task(folder)
    assert (task.needs_container, task.notes, task.difficulty) == (None, (), task.metadata["difficulty"])
    workspace = tmp_path / "work"
    prepare(task, workspace)
    assert score(folder, workspace, tmp_path / "before") == (0.0, "")
    subprocess.run([folder / "solution" / "solve.sh"], cwd=workspace, check=True)
    assert score(folder, workspace, tmp_path / "after") == (1.0, "")


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_an_empty_workspace_scores_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    assert score(folder, tmp_path / "work", tmp_path / "logs") == (0.0, "")
