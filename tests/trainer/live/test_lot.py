"""Groups on their way."""

from __future__ import annotations

import time
from pathlib import Path

from gyre.trainer.live.assignment import Assignment, Finished
from gyre.trainer.live.dispatch import Dispatch, Pace
from gyre.trainer.live.groups import Sizes
from gyre.trainer.live.jobs import load_jobs
from gyre.trainer.live.lot import Lot
from gyre.trainer.live.settings import EvaluationTable, TaskTable, TreeTable
from gyre.trainer.live.trees import OnlineTrees
from gyre.trainer.rollout.job import Options
from gyre.trainer.settings import TrainSettings
from tests.trainer.live.small_run import write_tasks
from tests.trainer.live.values import state


class Submitted:
    def __init__(self) -> None:
        self.all: list[Assignment] = []

    def submit(self, assignment: Assignment) -> None:
        self.all.append(assignment)


def lot_of(folder: Path, online: OnlineTrees, pace: Pace) -> tuple[Lot, Submitted]:
    tables = (TaskTable(folder=str(write_tasks(folder / "tasks", "river"))),)
    options = Options(runs=folder / "executions", command=["agent"])
    jobs = load_jobs(tables, EvaluationTable(), options, size=1, seed=0)
    submitted, sizes = Submitted(), Sizes(vocabulary=9)
    return Lot(jobs, submitted, online, Dispatch(pace=pace), TrainSettings(), sizes), submitted


def finished(assignment: Assignment, *, in_s: float = 0.0) -> Finished:
    (job,) = assignment.jobs
    return Finished(key=assignment.key, states=[state(job.name)], at=time.monotonic() + in_s)


def test_a_group_took_until_its_last_score_and_not_until_it_was_trained(tmp_path: Path) -> None:
    pace = Pace(groups_per_batch=1, burst=1, look_ahead=0.0, batches=1)
    with OnlineTrees(tmp_path / "logs", TreeTable()) as online:
        lot, submitted = lot_of(tmp_path, online, pace)
        lot.dispatch("0", 0)
        lot.consume(finished(submitted.all[0], in_s=1000), "0", 0)
        (trained,) = lot.end_batch()
    assert 990 < trained.seconds < 1010


def test_staleness_is_told_in_publications_and_bursts_may_have_none(tmp_path: Path) -> None:
    pace = Pace(groups_per_batch=1, burst=1, look_ahead=2.0, batches=3)
    told = list[tuple[int, int]]()
    with OnlineTrees(tmp_path / "logs", TreeTable()) as online:
        lot, submitted = lot_of(tmp_path, online, pace)
        for version, update in (("7", 4), ("7", 5), ("8", 6)):
            lot.dispatch(version, update)
            lot.consume(finished(submitted.all[len(told)]), version, update)
            told += [(one.staleness, one.update_staleness) for one in lot.end_batch()]
            lot.decisions.end_burst()
    assert told == [(0, 0), (0, 1), (1, 2)]
