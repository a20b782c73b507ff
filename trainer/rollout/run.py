"""ENTRY: one execution, from an empty folder to its score.

    record begins -> harness runs -> record ends -> scorer runs -> record scores

What is known after each step is on the disk, so a run that is started again goes on from there: what ran
is not run again, what was not scored is scored.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gyre.proxy.errors import GyreError, LogError, UpstreamError
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.environment import environment, furnish
from gyre.trainer.rollout.harness import PRESETS, Harness, Launch, Setting, command
from gyre.trainer.rollout.judge import Judgement, judge, last_words
from gyre.trainer.rollout.place import Place, copy_files, locked, size
from gyre.trainer.rollout.process import Program, Report, StartError, Supervised
from gyre.trainer.rollout.record import Calls, Record, Standing
from gyre.trainer.rollout.score import Command, Scorer, Verdict, own_scorer, run_scorer
from gyre.trainer.rollout.state import Event, State, Status
from gyre.trainer.rollout.task import Task, prepare, resolve_env
from gyre.trainer.rollout.watch import Clock, Ending, Quota, watch

TIMEOUT_S = 7200.0
SCORE_TIMEOUT_S = 600.0
WORKSPACE_LIMIT = 8 << 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """How executions are run; the same for all of a run."""

    runs: Path
    """A folder; each execution has one of its name in it."""
    harness: Harness | None = None
    program: str | None = None
    """The harness's executable, where PATH does not lead to it."""
    command: Sequence[str] = ()
    """A program of the user's own, or arguments for the harness."""
    model: str = ""
    context: int | None = None
    instruction: str = ""
    workspace: Path | None = None
    """What the workspace starts with, where no task says it."""
    timeout_s: float | None = None
    """None: what the task says, else two hours."""
    score: str | None = None
    """A shell command in place of the task's tests."""
    score_timeout_s: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workspace_limit: int = WORKSPACE_LIMIT
    evaluation: bool | None = None


@dataclass(frozen=True)
class Job:
    """One execution to be run."""

    name: str
    task: Task | None = None
    group: str | None = None


def run_execution(
    job: Job, options: Options, record: Record, stop: threading.Event, *, score_again: bool = False
) -> State:
    """Run it, or what an earlier run left to do of it; `stop` ends it wherever it is.

    Raises:
        UpstreamError: there is no proxy to run it under; nothing was started.
        BusyError: another process runs it.
        TaskError: the task has no scorer.
    """
    root = options.runs / job.name
    scorer = scorer_of(job.task, options)
    with locked(root, f"execution `{job.name}`"):
        state = states.load(root)
        if state is not None:
            _close_earlier(root, state, record)
            if score_again:
                state.status = Status.UNSCORED
        if state is None or state.status is not Status.UNSCORED:
            state = _run(job, options, record, stop, root, state)
        if state.status is Status.UNSCORED and not stop.is_set():
            _score(job, options, record, stop, root, state, scorer)
        return state


def scorer_of(task: Task | None, options: Options) -> Scorer | None:
    """Who says what the work is worth.

    Raises:
        TaskError: the task does not, and nobody else was named.
    """
    if options.score is not None:
        return Command(options.score)
    return own_scorer(task, os.environ) if task else None


def _close_earlier(root: Path, state: State, record: Record) -> None:
    """Bring to an end what an earlier run could not."""
    if state.status is Status.RUNNING:
        state.status, state.reason = Status.INTERRUPTED, "the run was killed"
        state.outcome = state.ended = ExecutionOutcome.RUN_TIMEOUT
        _tell(root, state, record, _ended(state, ExecutionEvent.ENDED, {}))
        _remove_temporary(state)
    deliver(root, state, record)


def _run(
    job: Job, options: Options, record: Record, stop: threading.Event, root: Path, earlier: State | None
) -> State:
    place = Place(root, earlier.number + 1 if earlier else 0)
    task = job.task.name if job.task else None
    place.folder.mkdir(parents=True, exist_ok=True)
    standing = record.begin(job.name, task, job.group, options.evaluation)
    state = State(
        execution=job.name,
        task=task,
        group=job.group,
        harness=_named(options),
        number=place.number,
        attempt=standing.attempt,
        workspace=str(place.workspace),
        stdout=str(place.stdout),
        stderr=str(place.stderr),
        temporary=tempfile.mkdtemp(prefix="gyre-"),
    )
    states.save(root, state)
    try:
        try:
            running = Supervised(_program(job, options, record, place, Path(state.temporary)))
        except (OSError, GyreError) as problem:
            _not_started(root, state, record, problem)
            return state
        limit_s = _limit_s(job.task, options)
        clock = Clock(limit_s, lambda: record.held_s(job.name, standing))
        quota = Quota(options.workspace_limit, [place.folder, Path(state.temporary)])
        with running:
            ending, report = watch(running, clock, quota, stop)
    finally:
        _remove_temporary(state)
    record.settle(job.name)
    calls = record.calls(job.name, standing)
    limit = _limit(ending, limit_s, quota)
    judgement = judge(ending, report, calls, limit, last_words(place.stderr, place.stdout))
    _over(root, state, record, judgement, _details(report, calls, record, job.name, standing, limit_s))
    return state


def _named(options: Options) -> str:
    return options.harness or Path(options.command[0]).name


def _limit_s(task: Task | None, options: Options) -> float:
    if options.timeout_s is not None:
        return options.timeout_s
    return task.timeout_s if task and task.timeout_s is not None else TIMEOUT_S


def _limit(ending: Ending, limit_s: float, quota: Quota) -> str:
    if ending is Ending.TOO_LARGE:
        return f"{size(quota.bytes)}, more than {size(quota.limit)}"
    return f"{limit_s:g} s"


def _program(job: Job, options: Options, record: Record, place: Place, temporary: Path) -> Program:
    """Everything in its place, and how to start it."""
    _fill(place.workspace, job.task, options)
    setting = Setting(
        execution=job.name,
        base_url=record.control.base_url(job.name),
        key=record.control.key(job.name),
        model=options.model,
        context=options.context,
        instruction=job.task.instruction if job.task else options.instruction,
        instruction_file=place.instruction,
        workspace=place.workspace,
        home=place.home,
    )
    launch = _launch(setting, options)
    furnish(setting, launch)
    more = {**(resolve_env(job.task.env, os.environ) if job.task else {}), **options.env}
    return Program(
        argv=launch.argv,
        env=environment(setting, launch, temporary, more),
        cwd=place.workspace,
        stdin=launch.stdin or Path(os.devnull),
        stdout=place.stdout,
        stderr=place.stderr,
        file_limit=options.workspace_limit,
    )


def _fill(workspace: Path, task: Task | None, options: Options) -> None:
    if task is not None:
        prepare(task, workspace)
    elif options.workspace is not None:
        copy_files(options.workspace, workspace, options.runs)
    else:
        workspace.mkdir()


def _launch(setting: Setting, options: Options) -> Launch:
    """Raises StartError where the program is not installed."""
    path = options.env.get("PATH")
    if options.harness is None:
        launch = command(setting, options.command)
        return replace(launch, argv=[_found(launch.argv[0], path), *launch.argv[1:]])
    preset = PRESETS[options.harness]
    hint = f"install it: {preset.install}; or say where it is with `--harness-path`"
    return preset.launch(setting, _found(options.program or preset.program, path, hint), options.command)


def _found(program: str, path: str | None, hint: str = "") -> str:
    """Where it is. What holds a `/` is a path from where we are, as a shell takes it."""
    found = shutil.which(program, path=path)
    if found is None:
        raise StartError(f"`{program}` is not installed", hint)
    return os.path.abspath(found)


def _not_started(root: Path, state: State, record: Record, problem: OSError | GyreError) -> None:
    state.status, state.outcome = Status.NOT_STARTED, ExecutionOutcome.FAILED
    state.ended = state.outcome
    state.reason = str(problem)
    state.hint = problem.hint if isinstance(problem, GyreError) else ""
    _tell(root, state, record, _ended(state, ExecutionEvent.ENDED, {"harness": state.harness}))


def _over(root: Path, state: State, record: Record, judgement: Judgement, details: dict[str, Any]) -> None:
    state.outcome = state.ended = judgement.outcome
    state.reason, state.ran = judgement.reason, judgement.ran
    state.seconds, state.details = details["seconds"], details
    state.status = Status.UNSCORED if judgement.is_scored else Status.DONE
    if judgement.outcome == ExecutionOutcome.RUN_TIMEOUT:
        state.status = Status.INTERRUPTED
    _tell(root, state, record, _ended(state, judgement.event, {"harness": state.harness, **details}))


def _ended(state: State, event: ExecutionEvent, details: dict[str, Any]) -> Event:
    return Event(
        event=event,
        attempt=state.attempt,
        outcome=state.outcome,
        artifact=state.workspace,
        reason=state.reason or None,
        details=details or None,
    )


def _details(
    report: Report, calls: Calls | None, record: Record, name: str, standing: Standing, limit_s: float
) -> dict[str, Any]:
    known = {
        "exit_code": report.code,
        "signal": report.signal,
        "seconds": round(report.seconds, 3),
        "held_s": round(record.held_s(name, standing), 3),
        "timeout_s": limit_s,
        "stdout_bytes": report.stdout.bytes,
        "stdout_dropped": report.stdout.dropped,
        "stderr_bytes": report.stderr.bytes,
        "stderr_dropped": report.stderr.dropped,
        "left_running": report.left,
        "not_ended": report.immortal,
    }
    if calls is not None:
        known |= {"calls": calls.made, "answered": calls.answered}
    return {key: value for key, value in known.items() if value is not None}


def _score(
    job: Job,
    options: Options,
    record: Record,
    stop: threading.Event,
    root: Path,
    state: State,
    scorer: Scorer | None,
) -> None:
    if scorer is None:
        state.status = Status.DONE
        states.save(root, state)
        return
    place = Place(root, state.number)
    with suppress(FileExistsError):
        place.workspace.mkdir(exist_ok=True)  # the harness may have removed it
    seconds = options.score_timeout_s or (job.task.verifier_timeout_s if job.task else SCORE_TIMEOUT_S)
    told = {"GYRE_EXECUTION": job.name, "GYRE_STDOUT": state.stdout}
    verdict = run_scorer(scorer, place.workspace, place.scorer, seconds, env=told, stop=stop)
    if verdict.score is not None or verdict.outcome is not None:
        _scored(root, state, record, _judged(verdict, place.workspace))


def _judged(verdict: Verdict, workspace: Path) -> Verdict:
    """Where there is nothing that a scorer could look at, its failure says just that."""
    if verdict.score is not None or any(files for _, _, files in os.walk(workspace)):
        return verdict
    reason = f"the workspace is empty: {verdict.reason}"
    return replace(verdict, score=0.0, outcome=ExecutionOutcome.NO_ARTIFACT, reason=reason)


def _scored(root: Path, state: State, record: Record, verdict: Verdict) -> None:
    state.score, state.status = verdict.score, Status.DONE
    state.outcome, state.reason = verdict.outcome or state.ended, verdict.reason or state.reason
    event = Event(
        event=ExecutionEvent.SCORED,
        attempt=state.attempt,
        outcome=verdict.outcome,
        score=verdict.score,
        reason=verdict.reason or None,
        details=verdict.details,
    )
    _tell(root, state, record, event)


def _tell(root: Path, state: State, record: Record, event: Event) -> None:
    """To the disk first: what the log cannot take now is brought to it by the next run."""
    state.unrecorded.append(event)
    states.save(root, state)
    deliver(root, state, record)


def deliver(root: Path, state: State, record: Record) -> None:
    """Bring into the log what is not there yet, as far as that is possible."""
    try:
        while state.unrecorded:
            record.deliver(state.execution, state.unrecorded[0])
            del state.unrecorded[0]
            states.save(root, state)
    except (LogError, UpstreamError) as problem:
        state.hint = f"not in the log yet, start the run again: {problem}"


def _remove_temporary(state: State) -> None:
    if state.temporary:
        shutil.rmtree(state.temporary, ignore_errors=True)
