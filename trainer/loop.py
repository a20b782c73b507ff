"""ENTRY of live training: agents run, are scored, become trees; the policy is updated and published; again.

    a burst begins: groups are dispatched -> executions run, while
        for each batch: the group that is ready first becomes trees and gradients, then the next, ...
                        an update is taken when all of its groups have come
    the burst ends: a checkpoint is written -> engines take up its weights

`gyre train RUN.toml` is this. A burst that a kill broke off is done again from the newest checkpoint;
executions that had come to their end are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gyre.proxy.units import seconds_of
from gyre.trainer.errors import UnusableError
from gyre.trainer.live.evaluation import Evaluation, due, evaluated
from gyre.trainer.live.finish import finish
from gyre.trainer.live.inbox import Inbox
from gyre.trainer.live.lot import Lot
from gyre.trainer.live.numbers import evaluations
from gyre.trainer.live.parts import Parts, expected, opened, serve
from gyre.trainer.live.reports import BatchReport, Publication
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.live.status import Phase
from gyre.trainer.live.ticker import Seen
from gyre.trainer.live.warnings import Alike
from gyre.trainer.live.watch import LiveOutcome, LiveWatch
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.ranks import OneProcess, Ranks
from gyre.trainer.update.report import Phases, Skipped, UpdateReport


def run(
    settings: RunSettings,
    root: Path,
    *,
    resume: bool = False,
    ranks: Ranks | None = None,
    watch: LiveWatch | None = None,
) -> LiveOutcome:
    """Train as the run file says, into `root`; with `resume`, go on from the newest checkpoint there.

    Of several processes this is for the main one; the others `follow`.

    Raises:
        GyreError: tasks, model, engine, harness or folder that cannot be used, or that failed for good. What
            was done is kept, and the run can be gone on with.
    """
    watch = watch or LiveWatch()
    stop = _deadline(settings, watch.stop)
    with opened(settings, root, resume=resume, ranks=ranks or OneProcess(), watch=watch, stop=stop) as parts:
        loop = _Loop(settings, parts, watch, stop)
        parts.ticker.look = loop.seen
        return loop.run()


class _Loop:
    """Bursts, one after the other."""

    def __init__(
        self, settings: RunSettings, parts: Parts, watch: LiveWatch, stop: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._watch = watch
        self._stop = stop
        self._trainer = trainer = parts.trainer
        self._services = parts.services
        self._rollouts = parts.rollouts
        self._trimming = parts.trimming
        self._told = parts.told
        self._board = parts.board
        self._jobs = parts.jobs
        self._folder = parts.folder
        self._alike = Alike(parts.board.warn, trainer.state.alike_in_a_row)
        self._inbox = Inbox(parts.rollouts, self._go_on)
        self._dispatch = trainer.state.dispatch(trainer.pace)
        self._lot = Lot(
            *(parts.jobs, parts.rollouts, parts.online, self._dispatch), settings.train, trainer.sizes
        )
        self._evaluations = evaluations(parts.told.lines)
        self._pending: list[tuple[Evaluation, float]] = []
        """Evaluations that have begun and are not told yet, and when they did."""
        self._clock = Phases()
        self._stepped = False
        """Whether weights have changed since the last publication."""

    def run(self) -> LiveOutcome:
        trainer, interrupted, final = self._trainer, False, None
        self._enter(Phase.STARTING)
        try:
            serve(self._settings, self._parts)
            self._go_on()
            trainer.team.served_as(str(trainer.state.version))
            self._tell_of_the_last()
            self._lot.void_later(trainer.state.version)
            self._lot.go_on_with(trainer.state.waiting)
            while not self._dispatch.over:
                self._burst()
            self._begin_evaluations(last=True)
            self._end_evaluations()
            final = self._folder.final
            trees, warn = self._settings.trees, self._board.warn
            finish(trees, self._folder, trainer.newest, stop=self._stop, warn=warn)
        except UnusableError:
            # Whoever mends what was wrong and goes on is not to meet the same executions again.
            self._rollouts.close()
            self._lot.void()
            for one, _ in self._pending:
                self._jobs.void(self._jobs.of_evaluation(one.key, one.temperature))
            raise
        except Stopped:
            interrupted = True
        self._parts.ticker.last = Phase.INTERRUPTED if interrupted else Phase.ENDED
        return LiveOutcome(
            batches=trainer.state.batch,
            updates=trainer.learner.progress.update,
            interrupted=interrupted,
            checkpoint=trainer.saver.newest,
            final=final,
            evaluations=self._evaluations,
        )

    def _burst(self) -> None:
        self._begin_evaluations()
        self._lot.dispatch(str(self._trainer.state.version), self._trainer.learner.progress.update)
        for _ in range(self._dispatch.batches):
            self._batch()
        self._end_evaluations()
        self._dispatch.end_burst()
        self._publish()

    def _batch(self) -> None:
        """Groups as they become ready; an update is taken whenever all of its groups have come."""
        trainer, state = self._trainer, self._trainer.state
        reports: list[UpdateReport] = []
        trainer.team.stream(groups=trainer.pace.groups_per_batch)
        for _ in range(trainer.pace.groups_per_batch):
            self._enter(Phase.ROLLOUT)
            with self._clock("wait"):
                finished = self._inbox.group(self._lot.may_enter)
            with self._clock("tree"):
                trees = self._lot.consume(finished, str(state.version), trainer.learner.progress.update)
            self._enter(Phase.TRAINING)
            with self._clock("train"):
                made = trainer.team.add(trees)
            for report in made:
                self._told.update(report, {"batch": state.batch, "part": len(reports)})
                self._board.update(report.update)
                reports.append(report)
        trainer.require_finite()
        self._report(reports)
        state.batch += 1

    def _report(self, reports: Sequence[UpdateReport]) -> None:
        updates = sum(report.skipped is Skipped.NO for report in reports)
        self._stepped = self._stepped or updates > 0
        state, clock, self._clock = self._trainer.state, self._clock, Phases()
        report = BatchReport(
            batch=state.batch,
            burst=self._dispatch.burst,
            version=str(state.version),
            groups=self._lot.end_batch(),
            updates=updates,
            seconds=clock.seconds,
            tokens_tree=sum(report.tokens.tree for report in reports),
            tokens_flat=sum(report.tokens.flat for report in reports),
        )
        self._told.batch(report)
        self._board.batch(report)
        self._board.sampled(self._lot.sampled)
        self._watch.batch(report, self._trainer.pace.batches)
        self._alike.look(report)

    def _publish(self) -> None:
        """A checkpoint, and what engines serve from now on. Weights as they were keep their version."""
        trainer, state = self._trainer, self._trainer.state
        self._enter(Phase.PUBLISHING)
        state.version += self._stepped
        state.burst, state.dispatched = self._dispatch.burst, self._dispatch.dispatched
        state.waiting, state.alike_in_a_row = self._lot.waiting, self._alike.batches
        with self._clock("publish"):
            began = time.monotonic()
            trainer.save()
            written = time.monotonic() - began
            self._watch.at("publication saved")
            weights = expected(self._services, trainer)
            swapped = self._services.publish(trainer.served, str(state.version), weights)
            self._watch.at("published")
        self._trimming.published(state.dispatched, [group.index for group in state.waiting])
        trainer.team.served_as(str(state.version))
        if self._stepped:
            self._tell_of(seconds=swapped.seconds, checkpoint=written, held=swapped.held)
        self._stepped = False

    def _tell_of(self, **numbers: Any) -> None:
        """The publication of the weights of now."""
        version, update = str(self._trainer.state.version), self._trainer.learner.progress.update
        made = Publication(version=version, update=update, **numbers)
        self._told.publication(made)
        self._board.publication(made)
        self._watch.publication(made)

    def _tell_of_the_last(self) -> None:
        """A run that was killed between a checkpoint and its line has not told of it."""
        told = {line["version"] for line in self._told.lines if line.get("kind") == "publication"}
        version = str(self._trainer.state.version)
        if self._trainer.state.version and version not in told:
            self._tell_of(seconds=0.0)

    def _begin_evaluations(self, *, last: bool = False) -> None:
        """Those that are due of the weights of now. Publication waits for them."""
        self._go_on()
        state, update = self._trainer.state, self._trainer.learner.progress.update
        settings = self._settings
        wanted = due(settings.evaluation, settings.sampling, version=state.version, update=update, last=last)
        done = {(one.version, one.temperature) for one in self._evaluations if one.episodes}
        for one in wanted:
            if (one.version, one.temperature) not in done:
                self._pending.append((one, time.monotonic()))
                self._rollouts.submit(self._jobs.of_evaluation(one.key, one.temperature))

    def _end_evaluations(self) -> None:
        while self._pending:
            one, began = self._pending[0]
            self._enter(Phase.EVALUATING)
            with self._clock("evaluate"):
                finished = self._inbox.evaluation(one.key)
            made = evaluated(one, finished, began)
            if not made.episodes:  # no engine was there: whoever goes on does it anew
                self._jobs.void(self._jobs.of_evaluation(one.key, one.temperature))
            self._pending.pop(0)
            self._evaluations.append(made)
            self._told.evaluation(made)
            self._board.evaluation(made)
            self._watch.evaluation(made)

    def _go_on(self) -> None:
        """Raises what ends the run."""
        if self._stop():
            raise Stopped
        for failed in (self._rollouts.failed, self._services.failed, self._trainer.team.failed):
            if failed is not None:
                raise failed

    def _enter(self, phase: Phase) -> None:
        state = self._trainer.state
        self._board.enter(phase, batch=state.batch, burst=self._dispatch.burst, version=str(state.version))

    def seen(self) -> Seen:
        """For who watches, in another thread."""
        ready = len(self._inbox.ready)
        return Seen(
            counts=self._rollouts.counts,
            groups_waiting=len(self._dispatch.waiting) - ready,
            groups_ready=ready,
            restarts=self._services.restarts,
        )


def _deadline(settings: RunSettings, stop: Callable[[], bool]) -> Callable[[], bool]:
    """Whether to stop: the user wants it, or the time of the run is over."""
    if settings.timeouts.run is None:
        return stop
    end = time.monotonic() + seconds_of(settings.timeouts.run)
    return lambda: stop() or time.monotonic() >= end
