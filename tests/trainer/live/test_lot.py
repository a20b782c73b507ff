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


def test_a_group_took_until_its_last_score_and_not_until_it_was_trained(tmp_path: Path) -> None:
    tables = (TaskTable(folder=str(write_tasks(tmp_path / "tasks", "river"))),)
    options = Options(runs=tmp_path / "executions", command=["agent"])
    jobs = load_jobs(tables, EvaluationTable(), options, size=1, seed=0)
    submitted = Submitted()
    pace = Pace(groups_per_batch=1, burst=1, look_ahead=0.0, batches=1)
    with OnlineTrees(tmp_path / "logs", TreeTable()) as online:
        lot = Lot(jobs, submitted, online, Dispatch(pace=pace), TrainSettings(), Sizes(vocabulary=9))
        lot.dispatch("0", 0)
        (assignment,) = submitted.all
        (job,) = assignment.jobs
        lot.consume(Finished(key=assignment.key, states=[state(job.name)], at=time.monotonic() + 1000), 0)
        (trained,) = lot.end_batch()
    assert 990 < trained.seconds < 1010
