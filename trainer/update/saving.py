"""From a learner in the middle of its work to a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gyre.trainer.config import as_table
from gyre.trainer.pack.piece import Floats32
from gyre.trainer.settings import TrainSettings
from gyre.trainer.update import checkpoint
from gyre.trainer.update.batch import Batch
from gyre.trainer.update.checkpoint import Saved, State
from gyre.trainer.update.cursor import Cursor
from gyre.trainer.update.folder import Observer, RunFolder
from gyre.trainer.update.learner import Learner, Progress
from gyre.trainer.update.optimizer import load_state, state_of


class Saver:
    """Writes the checkpoints of a run."""

    def __init__(
        self,
        folder: RunFolder,
        learner: Learner,
        *,
        source: Path | None,
        inputs: Mapping[str, str],
        template: str | None = None,
        at: Observer = lambda _: None,
    ) -> None:
        """`source`: folder of the model that training began with; `inputs`: digests; `template`: a chat
        template in place of the model's own."""
        self._folder = folder
        self._learner = learner
        self._source = source
        self._inputs = dict(inputs)
        self._template = template
        self._at = at
        self.newest: Path | None = None
        self._saved: int | None = None

    def go_on_from(self, saved: Saved) -> Cursor:
        """The learner is as it was; where it stood."""
        state, learner = saved.state, self._learner
        load_state(learner.optimizer, learner.parameters, saved.optimizer, learner.ranks)
        checkpoint.set_random_states(saved.optimizer)
        budget = learner.settings.token_budget
        if state.settings["token_budget"] == budget:
            budget = state.token_budget
        learner.go_on_from(
            Progress(update=state.update, bad_in_a_row=state.bad_in_a_row, bad=state.bad, token_budget=budget)
        )
        self.newest, self._saved = self._folder.place(state.update), state.update
        return Cursor(epoch=state.epoch, batch=state.batch, part=state.part)

    def save(
        self, cursor: Cursor, batch: Batch | None = None, *, live: Mapping[str, Any] | None = None
    ) -> None:
        """Unless the newest checkpoint is of this update. Collective; the main process writes.

        `live`: what a live run has to remember, as JSON can have it. Its first checkpoint is of no update:
        the weights that engines begin with.
        """
        update = self._learner.progress.update
        if self._saved == update or (live is None and not update):
            return
        learner = self._learner
        saved = Saved(
            state=self._state(cursor, live),
            optimizer=state_of(learner.optimizer, learner.parameters, learner.ranks),
            batch=_old(batch) if cursor.part and batch else {},
        )
        weights = self._weights()
        self.newest, self._saved = self._folder.place(update), update
        if not learner.ranks.is_main:
            return

        def fill(folder: Path) -> None:
            model = learner.network.policy.model
            checkpoint.write(
                folder,
                model=model,
                weights=weights,
                source=self._source,
                template=self._template,
                saved=saved,
                at=self._at,
            )

        keep = learner.settings.checkpoint.keep
        # Engines of a live run serve the one before until they have this one.
        keep = keep if live is None else max(keep, 2)
        self._folder.write_checkpoint(update, fill, keep=keep, at=self._at)

    def _state(self, cursor: Cursor, live: Mapping[str, Any] | None) -> State:
        learner, progress = self._learner, self._learner.progress
        return State(
            format=checkpoint.FORMAT,
            gyre=version("gyre-rl"),
            update=progress.update,
            epoch=cursor.epoch,
            batch=cursor.batch,
            part=cursor.part,
            bad_in_a_row=progress.bad_in_a_row,
            bad=progress.bad,
            token_budget=progress.token_budget,
            settings=as_table(learner.settings),
            inputs=self._inputs,
            live=None if live is None else dict(live),
        )

    def _weights(self) -> dict[str, torch.Tensor] | None:
        """Put together where they are sharded; None: the model has them whole."""
        learner = self._learner
        if learner.ranks.size == 1:
            return None
        weights = learner.network.policy.model.state_dict(keep_vars=True)
        whole = {tensor: learner.ranks.whole(tensor) for tensor in dict.fromkeys(weights.values())}
        return {name: whole[tensor] for name, tensor in weights.items()}  # tied ones stay one


_OLD = "old."
"""Before the names of executions, which may be any."""


def _old(batch: Batch) -> dict[str, torch.Tensor]:
    return {_OLD + name: torch.from_numpy(logprobs_T) for name, logprobs_T in batch.old.items()}


def old_of(saved: Saved) -> dict[str, Floats32]:
    """`Batch.old` of the batch in progress."""
    return {name.removeprefix(_OLD): tensor.numpy() for name, tensor in saved.batch.items()}


def newest_saved(
    folder: RunFolder, settings: TrainSettings, inputs: Mapping[str, str], tell: Callable[[str], None]
) -> Saved | None:
    """What to go on from, if there is anything; TrainError where it is of another run."""
    newest = folder.newest()
    if newest is None:
        tell("there is no checkpoint yet: from the beginning")
        return None
    saved = checkpoint.read(newest)
    for note in checkpoint.require_same(saved.state, settings, inputs):
        tell(note)
    tell(f"going on from `{newest}`")
    return saved
