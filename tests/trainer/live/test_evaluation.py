"""When a run evaluates, and what it says of it."""

from __future__ import annotations

import pytest

from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.live.assignment import Finished
from gyre.trainer.live.evaluation import Evaluation, due, evaluated
from gyre.trainer.live.settings import EvaluationTable, SamplingTable, TaskTable
from tests.trainer.live.values import state

TASKS = (TaskTable(folder="held-out"),)


@pytest.mark.parametrize(
    ("every", "version", "last", "wanted"),
    [
        (0, 0, False, True),
        (0, 5, False, False),
        (0, 5, True, True),
        (5, 4, False, False),
        (5, 5, False, True),
        (5, 7, True, True),
    ],
)
def test_before_the_first_after_the_last_and_every_so_many(
    every: int, version: int, last: bool, wanted: bool
) -> None:
    table = EvaluationTable(tasks=TASKS, every=every)
    found = due(table, SamplingTable(), version=version, update=version, last=last)
    assert bool(found) == wanted


def test_greedy_is_an_evaluation_of_its_own() -> None:
    table = EvaluationTable(tasks=TASKS, greedy=True)
    found = due(table, SamplingTable(temperature=0.7), version=0, update=0, last=False)
    assert [(one.key, one.temperature) for one in found] == [
        ("eval-000000", 0.7),
        ("eval-000000-greedy", 0.0),
    ]


def test_without_tasks_there_is_none() -> None:
    assert due(EvaluationTable(), SamplingTable(), version=0, update=0, last=True) == []


def test_no_artifact_is_a_score_of_0_and_what_was_not_scored_does_not_count() -> None:
    states = [
        state("a", 1.0),
        state("b", 0.5, outcome=ExecutionOutcome.TIMED_OUT),
        state("c", None, outcome=ExecutionOutcome.NO_ARTIFACT, ended=ExecutionOutcome.COMPLETED),
        state("d", None, outcome=ExecutionOutcome.SCORER_FAILED, ended=ExecutionOutcome.COMPLETED),
    ]
    finished = Finished(key="eval-000001", states=states, at=12.0)
    made = evaluated(Evaluation("eval-000001", "1", 3, 1.0), finished, 10.0)
    assert made.seconds == 2.0
    assert (made.episodes, made.pass_rate, made.mean_score) == (3, 1 / 3, 0.5)
    assert made.completed == 0.75
    assert made.outcomes == {"completed": 1, "timed_out": 1, "no_artifact": 1, "scorer_failed": 1}


def test_what_a_dead_engine_cost_is_no_episode() -> None:
    lost = state("b", 0.0, outcome=ExecutionOutcome.FAILED, lost=True)
    finished = Finished(key="eval-000001", states=[state("a", 1.0), lost])
    made = evaluated(Evaluation("eval-000001", "1", 3, 1.0), finished, 2.0)
    assert (made.episodes, made.mean_score, made.completed) == (1, 1.0, 1.0)
    assert made.outcomes == {"completed": 1, "lost": 1}


def test_an_evaluation_of_which_nothing_was_scored_has_no_rate() -> None:
    made = evaluated(Evaluation("eval-000001", "1", 3, 1.0), Finished(key="eval-000001"), 2.0)
    assert (made.episodes, made.pass_rate, made.mean_score, made.completed) == (0, None, None, None)
