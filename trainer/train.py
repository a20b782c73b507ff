"""Training on a folder of trees, from the first batch to the last checkpoint. `gyre train` is this.

    read the trees -> load the model -> for each batch: begin, update, update, ... -> checkpoints

The order of batches follows from the seed alone. So a run that was killed goes on from its newest checkpoint
and ends, on a CPU, with the same bits as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from gyre.trainer.config import as_toml
from gyre.trainer.data.read import Group, TrainData, read_groups
from gyre.trainer.errors import DivergedError
from gyre.trainer.pack.piece import Floats32
from gyre.trainer.passes.policy import load_policy
from gyre.trainer.settings import TrainSettings
from gyre.trainer.update import checkpoint, origin
from gyre.trainer.update.batch import Batch, deal
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.cursor import Cursor, total_updates, trees_of
from gyre.trainer.update.folder import RUN, SETTINGS, Observer, RunFolder
from gyre.trainer.update.learner import Learner
from gyre.trainer.update.metrics import Metrics, metrics
from gyre.trainer.update.network import as_set, reference_of, require_fit
from gyre.trainer.update.owned import owned
from gyre.trainer.update.ranks import OneProcess, Ranks
from gyre.trainer.update.report import UpdateReport
from gyre.trainer.update.saving import Saver, newest_saved, old_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How a run is watched and stopped."""

    tell: Callable[[str], None] = lambda _: None
    """Remarks for people."""
    updated: Callable[[UpdateReport, int], None] = lambda report, total: None
    """After each update, of so many in all."""
    stop: Callable[[], bool] = lambda: False
    """Asked between pieces: the update under way is dropped, and what was done before is saved."""
    at: Observer = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    updates: int
    """Done in all, with those of the run that this one went on from."""
    total: int
    interrupted: bool
    checkpoint: Path | None
    """The newest."""
    bad: int
    """Updates that were skipped because something was not finite."""
    last: UpdateReport | None
    """None: there was nothing left to do."""


def train(
    trees: Path,
    model: str,
    out: Path,
    settings: TrainSettings,
    *,
    resume: bool = False,
    ranks: Ranks | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Train `model` on `trees`, into `out`; with `resume`, go on from the newest checkpoint there.

    Raises:
        TreeError: no trees.
        TrainError: trees, model, settings or folder that cannot be used; nothing is overwritten.
        RefusedError: the pass would be wrong for the model.
        DivergedError: too many updates in a row were not finite. There is a checkpoint.
    """
    ranks, watch, folder = ranks or OneProcess(), watch or Watch(), RunFolder(out)
    if ranks.is_main:
        folder.require(resume=resume)
    data = read_groups(trees, settings)
    with owned(folder, ranks, resume=resume):
        inputs = origin.inputs(trees, model, settings.loss.reference)
        saved = newest_saved(folder, settings, inputs, watch.tell) if resume else None
        start = str(folder.place(saved.state.update) / checkpoint.MODEL) if saved else model
        policy = load_policy(start, dtype=settings.dtype, device=settings.device, progress=watch.tell)
        require_fit(data, policy.model)
        network, reference = as_set(policy, settings, ranks), reference_of(model, settings, ranks)
        if reference:
            require_fit(data, reference.policy.model, reference=True)
        learner = Learner(
            network,
            settings,
            total_updates=total_updates(data, settings),
            reference=reference,
            ranks=ranks,
            stop=watch.stop,
            at=watch.at,
        )
        saver = Saver(folder, learner, source=origin.model_folder(model), inputs=inputs, at=watch.at)
        torch.manual_seed(settings.seed)  # nothing draws, but a model of its own kind may
        cursor = saver.go_on_from(saved) if saved else Cursor()
        if ranks.is_main:
            about = {"trees": str(trees), "model": model, "inputs": inputs, "versions": origin.versions()}
            folder.write_file(RUN, msgspec.json.format(msgspec.json.encode(about)))
            folder.write_file(SETTINGS, as_toml(settings).encode())
        with metrics(folder, learner.progress.update) if ranks.is_main else nullcontext() as told:
            old = old_of(saved) if saved else {}
            return _run(learner, data, cursor, old, saver, told, watch)


def _run(
    learner: Learner,
    data: TrainData,
    cursor: Cursor,
    old: dict[str, Floats32],
    saver: Saver,
    told: Metrics | None,
    watch: Watch,
) -> Outcome:
    """`old`: of the batch that the cursor stands in the middle of."""
    settings, total, progress = learner.settings, learner.total_updates, learner.progress
    last, stopped, batch = None, False, None
    try:
        while progress.update < total and (groups := cursor.groups(data, settings)) is not None:
            batch = _batch(learner, data, groups, cursor, old)
            for part in range(cursor.part, len(batch.parts)):
                if progress.update == total:
                    break
                place = {"epoch": cursor.epoch, "batch": cursor.batch, "part": part}
                last = learner.update(batch, part)
                cursor.advance(len(batch.parts))
                if told:
                    told.write(last, place)
                watch.updated(last, total)
                if learner.diverged or _due(progress.update, settings):
                    saver.save(cursor, batch)
                if learner.diverged:
                    raise _diverged(learner, saver)
    except Stopped:
        stopped = True
    saver.save(cursor, batch)
    return Outcome(
        updates=progress.update,
        total=total,
        interrupted=stopped,
        checkpoint=saver.newest,
        bad=progress.bad,
        last=last,
    )


def _batch(
    learner: Learner, data: TrainData, groups: list[Group], cursor: Cursor, old: dict[str, Floats32]
) -> Batch:
    trees = trees_of(data, groups)
    if cursor.part:
        batch = Batch(parts=deal(trees, learner.settings.updates_per_batch), old=old)
    else:
        batch = learner.begin(trees)
    if cursor.part >= len(batch.parts):  # what it had was damaged since
        cursor.advance(len(batch.parts))
    return batch


def _due(update: int, settings: TrainSettings) -> bool:
    every = settings.checkpoint.every
    return bool(every) and update % every == 0


def _diverged(learner: Learner, saver: Saver) -> DivergedError:
    count = learner.progress.bad_in_a_row
    text = (
        f"loss or gradients were not finite in {count} updates in a row; `{saver.newest}` is the state before"
    )
    return DivergedError(text, "go on with `--resume` and a smaller `lr`, or a smaller `clip_norm`")
