"""The parts of a live run, opened one after another: trainer, metrics, engines and proxy, rollouts, trees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gyre.elastic.engines.logprobs import Expected
from gyre.elastic.engines.tokenizer import ids_of_probe
from gyre.trainer.live.board import Board
from gyre.trainer.live.config import public_table
from gyre.trainer.live.digests import tasks_of
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.hooks import Hooks, hooks, require_trackers
from gyre.trainer.live.jobs import Jobs, load_jobs
from gyre.trainer.live.metrics import LiveMetrics, live_metrics
from gyre.trainer.live.options import options_of
from gyre.trainer.live.rollouts import Rollouts
from gyre.trainer.live.services import Services
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.live.setup import Trainer, set_up
from gyre.trainer.live.ticker import Ticker
from gyre.trainer.live.trees import OnlineTrees
from gyre.trainer.live.trimming import Trimming
from gyre.trainer.live.watch import LiveWatch
from gyre.trainer.rollout.confine import require_confinement
from gyre.trainer.rollout.record import Record
from gyre.trainer.update.folder import LINES
from gyre.trainer.update.metrics import read_lines
from gyre.trainer.update.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    folder: LiveFolder
    jobs: Jobs
    trainer: Trainer
    board: Board
    ticker: Ticker
    """Begins before the model is read, and ends when all else has."""
    told: LiveMetrics
    services: Services
    rollouts: Rollouts
    online: OnlineTrees
    trimming: Trimming


@contextmanager
def opened(
    settings: RunSettings,
    root: Path,
    *,
    resume: bool,
    ranks: Ranks,
    watch: LiveWatch,
    stop: Callable[[], bool],
) -> Iterator[Parts]:
    """What can be refused without a model is, before one is read. `serve` starts engines.

    Raises:
        GyreError: tasks, model, engine, harness or folder that cannot be used.
    """
    folder = LiveFolder(root)
    require_trackers(settings.report)
    confined = require_confinement(settings.unsafe_local, watch.tell)
    jobs = _jobs(settings, folder, confined)
    board = Board(root, batches=settings.rollout.batches, warn=watch.tell)
    ticker = Ticker(board, folder, watch.status)
    if resume:
        board.go_on_with(read_lines(root / LINES))
    with ExitStack() as stack:
        enter = stack.enter_context
        trainer = enter(
            set_up(
                settings,
                root,
                ranks=ranks,
                resume=resume,
                tell=watch.tell,
                stop=stop,
                at=watch.at,
                tasks=tasks_of(jobs),
                beside=ticker,
            )
        )
        enter(trainer.team)
        sent = enter(_hooks(settings, root.name, trainer.identity, board))
        told = enter(live_metrics(trainer.folder, trainer.learner.progress.update, sent))
        board.go_on_with(told.lines)
        services = enter(Services(settings, folder, board.warn, stop))
        yield Parts(
            folder=folder,
            jobs=jobs,
            trainer=trainer,
            board=board,
            ticker=ticker,
            told=told,
            services=services,
            rollouts=enter(_rollouts(settings, Record(services.control))),
            online=enter(OnlineTrees(folder.logs, settings.trees)),
            trimming=enter(_trimming(settings, jobs, trainer, board)),
        )


def serve(settings: RunSettings, parts: Parts) -> None:
    """Have engines serve the newest weights, and executions told of them.

    Raises:
        Stopped: `stop` said so before they did.
        GyreError: an engine or the proxy does not come up.
    """
    services, trainer, jobs = parts.services, parts.trainer, parts.jobs
    services.start(trainer.served, str(trainer.state.version), expected(services, trainer))
    confined = jobs.options.confined
    jobs.options = options_of(
        settings, jobs.options.runs, model=services.model, context=services.context, confined=confined
    )


def _jobs(settings: RunSettings, folder: LiveFolder, confined: bool) -> Jobs:
    """Which model they are told is known when engines are there."""
    options = options_of(settings, folder.executions, model="", context=None, confined=confined)
    size, seed = settings.rollout.group_size, settings.train.seed
    return load_jobs(settings.tasks, settings.evaluation, options, size=size, seed=seed)


def _hooks(settings: RunSettings, name: str, identity: str, board: Board) -> AbstractContextManager[Hooks]:
    about = public_table(settings)
    return hooks(settings.report, name=name, identity=identity, config=about, warn=board.warn)


def _rollouts(settings: RunSettings, record: Record) -> Rollouts:
    table = settings.rollout
    return Rollouts(record, threading.Event(), at_once=table.concurrency, retries=table.retries)


def _trimming(settings: RunSettings, jobs: Jobs, trainer: Trainer, board: Board) -> Trimming:
    whole = settings.rollout.keep * trainer.pace.burst * trainer.pace.groups_per_batch
    return Trimming(jobs, whole, board.warn)


def expected(services: Services, trainer: Trainer) -> Expected | None:
    """What the weights of now make of a short text, for engines that do not tell which they have."""
    ids = ids_of_probe(trainer.served) if services.opaque else None
    return Expected(ids, trainer.team.logprobs(ids)) if ids else None
