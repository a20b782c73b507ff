"""A batch whose groups become ready one after the other, each computed as soon as it comes.

Groups are dealt into updates by the order in which they come, as `batch.deal` does: how many there will be
is known, not which. Where there are fewer groups than updates, single executions are dealt, and that can only
begin when the last group is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.piece import Piece, Targets
from gyre.trainer.update.batch import cuts
from gyre.trainer.update.opened import Opened
from gyre.trainer.update.report import Phases, UpdateReport

if TYPE_CHECKING:
    from gyre.trainer.update.learner import Learner


class Streamed:
    """From the first group to the last nobody else may use the learner: gradients lie in its parameters.

    What is raised ends it. The weights are then as they were before the update under way; updates of the
    batch that were taken before that one are not undone.
    """

    def __init__(self, learner: Learner, groups: int) -> None:
        """`groups`: how many the batch has, at least one."""
        parts = learner.settings.updates_per_batch
        self._learner = learner
        self._groups = groups
        self._ends = cuts(groups, parts) if groups >= parts else []
        """Groups after which an update is taken; none: executions are dealt."""
        self._start = learner.weights() if len(self._ends) > 1 else None
        """Of the batch, for the old log-probabilities of later updates."""
        self._came = 0
        self._waiting: list[list[TrainTree]] = []
        self._opened: Opened | None = None
        self._phases = Phases()

    @property
    def left(self) -> int:
        """Groups that are still to come."""
        return self._groups - self._came

    def add(self, trees: Sequence[TrainTree]) -> list[UpdateReport]:
        """The next group; without trees where nothing of it can be trained. Which updates it completed.

        Raises:
            Stopped, TrainError: as `Learner.update`.
        """
        if not self.left:
            raise ValueError(f"all {self._groups} groups of the batch have come")
        self._came += 1
        if self._ends:
            return self._computed(trees)
        self._waiting.append(list(trees))
        return [] if self.left else self._dealt()

    def _computed(self, trees: Sequence[TrainTree]) -> list[UpdateReport]:
        if self._opened is None:
            self._phases = Phases()
            first = self._came <= self._ends[0]
            self._opened = self._learner.open(None if first else self._old, self._phases)
        self._opened.add(trees)
        if self._came not in self._ends:
            return []
        report, self._opened = self._opened.close(), None
        return [report]

    def _dealt(self) -> list[UpdateReport]:
        """At least one, even of nothing: updates are counted, and checkpoints have their numbers."""
        learner = self._learner
        batch = learner.begin(self._waiting)
        batch.parts = batch.parts or [[]]
        return [learner.update(batch, part) for part in range(len(batch.parts))]

    def _old(self, targets: Targets, pieces: Sequence[Piece]) -> torch.Tensor:
        assert self._start is not None
        with self._phases("old"), self._learner.at(self._start):
            return self._learner.score(targets, pieces)
