"""ENTRY: many executions: N of each task, K at once. A run that is started again goes on where it stopped."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import traceback
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from gyre.proxy.errors import GyreError, UpstreamError
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.ended import why
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.record import Record
from gyre.trainer.rollout.run import deliver, run_execution, scorer_of
from gyre.trainer.rollout.secret import secrets_of
from gyre.trainer.rollout.state import State, Status
from gyre.trainer.rollout.task import Task, TaskError, load_task, resolve_env

log = logging.getLogger(__name__)
_MOST = 120
"""Letters of a task's name in an execution's; a name has at most 128."""


@dataclass
class Plan:
    """What a run is to do."""

    jobs: list[Job] = field(default_factory=list)
    broken: list[TaskError] = field(default_factory=list)
    """Tasks that cannot be run."""
    notes: list[str] = field(default_factory=list)
    """What may be wrong with the others."""


@dataclass
class Result:
    """What became of it."""

    states: list[State] = field(default_factory=list)
    """In the order of the jobs; those that were done before included."""
    kept: int = 0
    """Executions that were done before."""
    failures: list[tuple[Job, GyreError]] = field(default_factory=list)
    """Executions that could not even be tried."""
    gone: UpstreamError | None = None
    """Why no more executions were begun."""


def plan(folders: Sequence[Path], n: int, options: Options, prefix: str = "") -> Plan:
    """N executions of each task, named `<task>-<index>`; the task is their group.

    `prefix` sets those of this run apart from others in the log: `<prefix>-<task>-<index>`.
    """
    made = Plan()
    before = f"{prefix}-" if prefix else ""
    names: dict[str, Path] = {}
    for folder in folders:
        try:
            task = checked_task(folder, options)
            name = slug(before + task.short_name)
            if name in names:
                raise TaskError(f"task `{folder}` has the name of `{names[name]}`", "rename its folder")
        except TaskError as problem:
            made.broken.append(problem)
            continue
        names[name] = folder
        made.notes += [f"task `{folder}`: {note}" for note in task.notes]
        group = before + task.name
        made.jobs += [Job(f"{name}-{index}", task, group, only_new=True) for index in range(n)]
    return made


def checked_task(folder: Path, options: Options) -> Task:
    """A task that can be run here and scored.

    Raises:
        TaskError: it cannot.
    """
    task = load_task(folder)
    if task.needs_container:
        hint = "Harbor runs it; `gyre log import-harbor` takes its scores"
        raise TaskError(f"task `{task.folder}` needs a container: {task.needs_container}", hint)
    resolve_env(task.env, os.environ)
    scorer_of(task, options)
    return task


def slug(name: str, most: int = _MOST) -> str:
    """As a part of an execution's name: letters, digits, `.`, `_`, `-`, first a letter or digit.

    Names in other scripts stay apart by a digest: `task-07ee6c`.
    """
    digest = ""
    if not name.isascii():
        # However the file system spells an accent.
        name = unicodedata.normalize("NFC", name)
        digest = "-" + hashlib.sha256(os.fsencode(name)).hexdigest()[:6]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-._")[: most - len(digest)]
    return ((plain.rstrip("-") if digest else plain) or "task") + digest


def run_jobs(
    jobs: Sequence[Job],
    options: Options,
    record: Record,
    stop: threading.Event,
    *,
    at_once: int,
    retry_failed: bool = False,
    tell: Callable[[State, int, int], None] = lambda state, done, total: None,
) -> Result:
    """Run what is not done yet; `tell` gets each execution that ends, how many have, and of how many.

    Once the proxy is gone no more are begun; those that run end as they can.
    """
    result = Result()
    found: dict[str, State] = {}
    to_do = _sorted_out(jobs, options, record, retry_failed, found, result)
    gone = threading.Event()

    def run(job: Job, score_again: bool) -> State | None:
        if stop.is_set() or gone.is_set():
            return None
        try:
            return run_execution(job, options, record, stop, score_again=score_again)
        except UpstreamError:
            gone.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(run, job, again): job for job, again in to_do}
        for future in as_completed(futures):
            try:
                state = future.result()
            except UpstreamError as problem:
                result.gone = problem
            except GyreError as problem:
                result.failures.append((futures[future], problem))
            except Exception as problem:
                job = futures[future]
                result.failures.append((job, fault(problem, job, options, record)))
            except BaseException:
                # We are to end: end what runs, so that the next run can go on with it.
                stop.set()
                raise
            else:
                if state is not None:
                    found[state.execution] = state
                    tell(state, len(found), len(jobs))
    result.states = [found[job.name] for job in jobs if job.name in found]
    return result


def fault(problem: Exception, job: Job, options: Options, record: Record) -> GyreError:
    """One of ours that could not even be recorded is said; the next run tries again."""
    secrets = secrets_of(record.control.token, os.environ, options.env)
    trace = secrets.hide("".join(traceback.format_exception(problem)))
    log.error("`%s` ends with a fault of gyre's own\n%s", job.name, trace)
    what = why(problem) if isinstance(problem, OSError) else type(problem).__name__
    told = f"`{job.name}`: a fault of gyre's own: {secrets.hide(what)}"
    return GyreError(told, "start the run again to go on with it")


def _sorted_out(
    jobs: Sequence[Job],
    options: Options,
    record: Record,
    retry_failed: bool,
    found: dict[str, State],
    result: Result,
) -> list[tuple[Job, bool]]:
    """What is to be done, and whether that is only to score it again."""
    to_do = []
    for job in jobs:
        try:
            state = states.load(options.runs / job.name)
        except GyreError as problem:
            result.failures.append((job, problem))
            continue
        if state is None or is_open(state, retry_failed):
            to_do.append((job, _lacks_score(state)))
        else:
            deliver(options.runs / job.name, state, record)
            found[job.name] = state
            result.kept += 1
    return to_do


def is_open(state: State, retry_failed: bool = False) -> bool:
    """Whether there is something left to do of what an earlier run did."""
    if state.status is not Status.DONE:
        return True
    return retry_failed and (state.outcome is ExecutionOutcome.FAILED or _lacks_score(state))


def _lacks_score(state: State | None) -> bool:
    return state is not None and state.outcome is ExecutionOutcome.SCORER_FAILED
