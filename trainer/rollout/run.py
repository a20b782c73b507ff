"""ENTRY: one execution, from an empty folder to its score.

    the record begins -> the harness runs -> the record ends -> the scorer runs -> the record has the score

What is known after each step is on the disk, so a run that is started again goes on from there: what ran
is not run again, what was not scored is scored.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gyre.elastic.process.supervised import GRACE_S, Supervised
from gyre.proxy.errors import GyreError, LogError, UpstreamError
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.confine import Cage
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.ended import details_of, judged, status_after, why
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.judge import Judgement, judge, last_words
from gyre.trainer.rollout.place import Place, checked_folder, locked, size
from gyre.trainer.rollout.record import Record, Standing, held_in
from gyre.trainer.rollout.room import full_is_told, is_full
from gyre.trainer.rollout.score import Command, Scorer, Verdict, own_scorer, run_scorer
from gyre.trainer.rollout.secret import Secrets, secrets_of
from gyre.trainer.rollout.start import prepared, scorer_cage
from gyre.trainer.rollout.state import Event, State, Status
from gyre.trainer.rollout.task import Task, TaskError, resolve_env
from gyre.trainer.rollout.tree import remove_tree
from gyre.trainer.rollout.watch import Clock, Ending, Quota, watch

log = logging.getLogger(__name__)
_MOST_SAID = 300
_UNWIND_S = GRACE_S + 5
"""How long the harness of a run that was killed may take to end."""


def run_execution(
    job: Job, options: Options, record: Record, stop: threading.Event, *, score_again: bool = False
) -> State:
    """Run it, or what an earlier run left to do of it; `stop` ends it wherever it is.

    Raises:
        UpstreamError: there is no proxy to run it under; nothing was started.
        BusyError: another process runs it, or something that has its name.
        TaskError: the task has no scorer.
        PlaceError: it cannot have a folder of its name.
        RoomError: the disk is full. The next run takes up what is known of it.
    """
    with full_is_told():
        return _run(job, options, record, stop, score_again)


def _run(job: Job, options: Options, record: Record, stop: threading.Event, score_again: bool) -> State:
    scorer = scorer_of(job.task, options)
    root = options.runs / checked_folder(job.name)
    with locked(root, f"execution `{job.name}`", _UNWIND_S) as lock:
        earlier = states.load(root)
        execution = _Execution(job, options, record, stop, root)
        if earlier is not None:
            execution.resume(earlier, score_again)
        if earlier is None or earlier.status is not Status.UNSCORED:
            execution.begin(earlier)
            with execution.kept_together():
                execution.run(lock)
        if execution.state.status is Status.UNSCORED and not stop.is_set():
            with execution.kept_together():
                execution.score(scorer)
        return execution.state


def scorer_of(task: Task | None, options: Options) -> Scorer | None:
    """Who says what the work is worth.

    Raises:
        TaskError: the task does not, and nobody else was named.
    """
    if options.score is not None:
        return Command(options.score)
    return own_scorer(task, os.environ) if task else None


class _Execution:
    """One execution. Its steps read and fill the same state, so it is one object."""

    state: State
    standing: Standing

    def __init__(self, job: Job, options: Options, record: Record, stop: threading.Event, root: Path) -> None:
        self.job = job
        self.options = options
        self.record = record
        self.stop = stop
        self.root = root
        self.secrets = _secrets(job, options, record.control)

    @property
    def place(self) -> Place:
        return Place(self.root, self.state.number)

    def resume(self, earlier: State, score_again: bool) -> None:
        """Bring to its end what an earlier run could not."""
        self.state = earlier
        if earlier.status is Status.RUNNING:
            killed = Judgement(ExecutionOutcome.RUN_TIMEOUT, "the run was killed")
            self._over(killed, {})
            _remove(earlier.temporary)
        deliver(self.root, earlier, self.record)
        if score_again:
            earlier.status = Status.UNSCORED

    def begin(self, earlier: State | None) -> None:
        """From here on the log knows of it, and so does a run that is started again."""
        job = self.job
        task = job.task.name if job.task else None
        again = earlier is not None or not job.only_new
        options = self.options
        self.standing = self.record.begin(
            job.name,
            task,
            job.group,
            options.evaluation,
            restores=options.restores,
            pin=options.pin,
            allowance=options.allowance,
            again=again,
            ended=earlier.attempt if earlier else -1,
        )
        place = Place(self.root, earlier.number + 1 if earlier else 0)
        self.state = State(
            execution=job.name,
            task=task,
            group=job.group,
            harness=self.options.called,
            number=place.number,
            retried=earlier.retried + earlier.lost if earlier else 0,
            attempt=self.standing.attempt,
            workspace=str(place.workspace),
            stdout=str(place.stdout),
            stderr=str(place.stderr),
            temporary=tempfile.mkdtemp(prefix="gyre-"),
        )
        states.save(self.root, self.state)

    @contextmanager
    def kept_together(self) -> Iterator[None]:
        """A step: whatever is wrong with it is recorded, and is the end of this execution only.

        The one place where every exception is caught. What a program leaves behind can be anything, and a
        run of thousands is not to end for one of them.
        """
        try:
            yield
        except GyreError:
            raise
        except Exception as problem:
            if is_full(problem) or self.state.status not in (Status.RUNNING, Status.UNSCORED):
                raise  # nothing can be written down
            trace = self.secrets.hide(traceback.format_exc())
            log.error("`%s` ends with a fault of gyre's own\n%s", self.job.name, trace)
            self._broken(f"a fault of gyre's own: {type(problem).__name__}: {problem}")

    def _broken(self, reason: str) -> None:
        reason = self.secrets.hide(reason)[:_MOST_SAID]
        if self.state.status is Status.UNSCORED:
            self._scored(Verdict(None, ExecutionOutcome.SCORER_FAILED, reason))
        else:
            self._over(Judgement(ExecutionOutcome.FAILED, reason, ran=False), {})

    def run(self, lock: int) -> None:
        """The harness, from its start to the event that says how it ended."""
        temporary = Path(self.state.temporary)
        quota = Quota(self.options.workspace_limit, [self.place.folder, temporary])
        try:
            running = self._started(lock)
            if running is None:
                return
            clock = Clock(self.job.limit_s(self.options), self._held_s)
            with running:
                ending, report = watch(running, clock, quota, self.stop)
        finally:
            _remove(self.state.temporary)
        view = self.record.settle(self.job.name)
        calls = self.record.calls(self.job.name, self.standing, view)
        words = last_words(self.place.stderr, self.place.stdout, secrets=self.secrets)
        judgement = judge(ending, report, calls, self._limit(ending, quota), words)
        self.state.lost = judgement.outcome is ExecutionOutcome.FAILED and (
            calls is None or calls.lost or calls.cut
        )
        limit_s, held_s = self.job.limit_s(self.options), held_in(view, self.standing)
        details = details_of(report, calls, held_s, limit_s)
        if self.state.lost:
            # What it is worth says something of the machine: without a score nobody counts it.
            self._over(judgement, {**details, "lost": True}, Status.DONE)
        else:
            self._over(judgement, details)

    def _started(self, lock: int) -> Supervised | None:
        """The harness; None when it cannot be started, which is then recorded."""
        job, place = self.job, self.place
        place.folder.mkdir(exist_ok=True)
        try:
            program = prepared(job, self.options, self.record.control, place, Path(self.state.temporary))
            return Supervised(program, lock)
        except (OSError, GyreError) as problem:
            self.state.hint = problem.hint if isinstance(problem, GyreError) else ""
            failed = Judgement(ExecutionOutcome.FAILED, why(problem), ran=False)
            self._over(failed, {}, Status.NOT_STARTED)
            return None

    def _over(self, judgement: Judgement, details: dict[str, Any], status: Status | None = None) -> None:
        state = self.state
        state.outcome = state.ended = judgement.outcome
        state.reason, state.ran = self.secrets.hide(judgement.reason), judgement.ran
        state.seconds, state.details = details.get("seconds", 0.0), details
        state.status = status or status_after(judgement)
        self._tell(
            Event(
                event=judgement.event,
                attempt=state.attempt,
                outcome=state.outcome,
                artifact=state.workspace,
                reason=state.reason or None,
                details={"harness": state.harness, **details},
            )
        )

    def _held_s(self) -> float:
        return self.record.held_s(self.job.name, self.standing)

    def _limit(self, ending: Ending, quota: Quota) -> str:
        if ending is Ending.TOO_LARGE:
            return f"{size(quota.bytes)}, more than {size(quota.limit)}"
        if ending is Ending.TOO_MANY:
            return f"{self.options.processes} processes"
        return f"{self.job.limit_s(self.options):g} s"

    def score(self, scorer: Scorer | None) -> None:
        """Let the scorer look at the workspace. One that is stopped says nothing; the next run asks again."""
        if scorer is None:
            self.state.status = Status.DONE
            states.save(self.root, self.state)
            return
        place = self.place
        with suppress(FileExistsError):
            place.workspace.mkdir(parents=True, exist_ok=True)  # the harness may have removed it
        told = {"GYRE_EXECUTION": self.job.name, "GYRE_STDOUT": self.state.stdout}
        told = {**self.options.scorer_env, **told}
        limit_s = self.job.score_limit_s(self.options)
        verdict = run_scorer(
            scorer,
            place.workspace,
            place.scorer,
            limit_s,
            env=told,
            stop=self.stop,
            secrets=self.secrets,
            cage=self._scorer_cage if self.options.confined else None,
            memory=self.options.memory,
            processes=self.options.processes,
            room=self.options.workspace_limit,
        )
        if verdict.score is not None or verdict.outcome is not None:
            self._scored(judged(verdict, place.workspace))

    def _scorer_cage(self, folder: Path) -> Cage:
        return scorer_cage(self.job, self.options, self.record.control, self.place, folder)

    def _scored(self, verdict: Verdict) -> None:
        state = self.state
        state.score, state.status = verdict.score, Status.DONE
        reason = self.secrets.hide(verdict.reason)
        state.outcome, state.reason = verdict.outcome or state.ended, reason or state.reason
        if "seconds" in verdict.details:
            state.details = {**state.details, "scorer_seconds": round(verdict.details["seconds"], 3)}
        self._tell(
            Event(
                event=ExecutionEvent.SCORED,
                attempt=state.attempt,
                outcome=verdict.outcome,
                score=verdict.score,
                reason=reason or None,
                details=verdict.details,
            )
        )

    def _tell(self, event: Event) -> None:
        """To the disk first: what the log cannot take now is brought to it by the next run."""
        self.state.unrecorded.append(event)
        states.save(self.root, self.state)
        deliver(self.root, self.state, self.record)


def _secrets(job: Job, options: Options, control: Control) -> Secrets:
    """What the harness and the scorer were given, or can look up here."""
    keys = {"API_KEY": control.key(job.name)} if control.token else {}
    environments = [os.environ, options.env, options.scorer_env, keys]
    if job.task:
        for wanted in (job.task.env, job.task.verifier_env):
            # Where a variable is missing nothing is given; the execution says so itself.
            with suppress(TaskError):
                environments.append(resolve_env(wanted, os.environ))
    return secrets_of(control.token, *environments)


def deliver(root: Path, state: State, record: Record) -> None:
    """Bring into the log what is not there yet, as far as that is possible."""
    while state.unrecorded:
        try:
            record.deliver(state.execution, state.unrecorded[0])
        except (LogError, UpstreamError, OSError) as problem:
            log.warning("`%s` ended, which is not in the log yet: %s", state.execution, problem)
            return
        del state.unrecorded[0]
        states.save(root, state)


def _remove(temporary: str) -> None:
    if temporary:
        with suppress(OSError):
            remove_tree(Path(temporary))
