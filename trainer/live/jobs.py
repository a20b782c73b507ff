"""From a number to what is to be run: the executions of a group, those of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gyre.proxy.identity import LONGEST
from gyre.proxy.settings import Pin
from gyre.trainer.errors import TrainError
from gyre.trainer.live.assignment import Assignment, Group
from gyre.trainer.live.order import TaskOrder, Weighted
from gyre.trainer.live.settings import EvaluationTable, TaskTable
from gyre.trainer.live.tasks import tasks_in
from gyre.trainer.rollout.group import slug
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.state import void
from gyre.trainer.rollout.task import Task

NEUTRAL = Pin(
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
)
"""Sampling as the plain softmax has it, beside a temperature."""


def pinned(temperature: float) -> Pin:
    """Every call of an execution is sampled so, whatever its harness asks for."""
    return Pin(
        temperature=temperature,
        top_p=NEUTRAL.top_p,
        top_k=NEUTRAL.top_k,
        min_p=NEUTRAL.min_p,
        presence_penalty=NEUTRAL.presence_penalty,
        frequency_penalty=NEUTRAL.frequency_penalty,
        repetition_penalty=NEUTRAL.repetition_penalty,
    )


_EVALUATION, _GROUP = re.compile(r"eval-(\d+)-"), re.compile(r"g(\d+)-")


@dataclass(slots=True)
class Jobs:
    """What is to be run of a live run. Options are those of training."""

    order: TaskOrder[Path]
    tasks: dict[Path, Task]
    evaluated: Sequence[Task]
    """The task of each episode of an evaluation."""
    options: Options
    size: int
    """Executions of a group."""

    def group(self, index: int, *, burst: int, version: str) -> Group:
        task = self.tasks[self.order[index]]
        return Group(index=index, task=task, burst=burst, version=version, size=self.size)

    def of_group(self, group: Group) -> Assignment:
        return Assignment(
            key=group.key,
            jobs=[
                Job(_name(f"{group.key}-", group.task, f"-{number}"), group.task, group.key)
                for number in range(group.size)
            ],
            options=self.options,
        )

    def of_evaluation(self, key: str, temperature: float) -> Assignment:
        options = replace(self.options, evaluation=True, pin=pinned(temperature))
        jobs = [Job(_name(f"{key}-{number}-", task), task, key) for number, task in enumerate(self.evaluated)]
        return Assignment(key=key, jobs=jobs, options=options, urgent=True)

    def void(self, assignment: Assignment) -> None:
        """What ended of it is not to be used: whoever goes on runs all of it anew."""
        for job in assignment.jobs:
            void(self.options.runs / job.name)

    def void_later(self, version: int, group: int) -> None:
        """The same for evaluations of weights after that version, and for groups from that number on."""
        runs = self.options.runs
        for folder in runs.iterdir() if runs.is_dir() else ():
            evaluation, trained = _EVALUATION.match(folder.name), _GROUP.match(folder.name)
            if (evaluation and int(evaluation[1]) > version) or (trained and int(trained[1]) >= group):
                void(folder)


def _name(before: str, task: Task, after: str = "") -> str:
    """Of an execution. What stands around the task's name makes it the only one."""
    return before + slug(task.short_name, LONGEST - len(before) - len(after)) + after


def load_jobs(
    lists: Sequence[TaskTable],
    evaluation: EvaluationTable,
    options: Options,
    *,
    size: int,
    seed: int,
) -> Jobs:
    """Every task is read and checked.

    Raises:
        TaskError: one cannot be run here, or has no scorer.
        TrainError: a task is both trained and evaluated on.
    """
    found = [tasks_in(Path(each.folder), options) for each in lists]
    held_out = [task for each in evaluation.tasks for task in tasks_in(Path(each.folder), options)]
    tasks = {task.folder: task for each in found for task in each}
    both = sorted(str(task.folder) for task in held_out if task.folder in tasks)
    if both:
        raise TrainError(f"`{both[0]}` is both trained and evaluated on", "take it out of one of the lists")
    order = TaskOrder(
        [
            Weighted([task.folder for task in each], table.weight)
            for each, table in zip(found, lists, strict=True)
        ],
        seed,
    )
    return Jobs(order, tasks, episodes(held_out, evaluation), options, size)


def episodes(tasks: Sequence[Task], evaluation: EvaluationTable) -> list[Task]:
    """The tasks of an evaluation, the same ones each time: drawn with a generator of its own."""
    if not tasks:
        return []
    draws = np.random.PCG64(np.random.SeedSequence([evaluation.seed])).random_raw(len(tasks))
    mixed = [tasks[index] for index in np.argsort(draws, kind="stable").tolist()]
    return [mixed[number % len(mixed)] for number in range(evaluation.episodes)]
