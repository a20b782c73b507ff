"""Where a run stands in its data: epoch, batch, and the updates of that batch that are done."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.trainer.data.order import batches
from gyre.trainer.data.read import Group, TrainData
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.settings import TrainSettings
from gyre.trainer.update.batch import number_of_parts


@dataclass(slots=True, kw_only=True)
class Cursor:
    epoch: int = 0
    batch: int = 0
    part: int = 0
    _dealt: tuple[int, list[list[Group]]] | None = None
    """Batches of an epoch."""

    def groups(self, data: TrainData, settings: TrainSettings) -> list[Group] | None:
        """Of the batch that it stands at; None at the end of all epochs."""
        while self.epoch < settings.epochs:
            if self._dealt is None or self._dealt[0] != self.epoch:
                self._dealt = self.epoch, batches(data.groups, settings, self.epoch)
            found = self._dealt[1]
            if self.batch < len(found):
                return found[self.batch]
            self.epoch, self.batch, self.part = self.epoch + 1, 0, 0
        return None

    def advance(self, parts: int) -> None:
        """One update further in a batch of so many."""
        self.part += 1
        if self.part >= parts:
            self.batch, self.part = self.batch + 1, 0


def trees_of(data: TrainData, groups: list[Group]) -> list[list[TrainTree]]:
    """By group. One that was damaged since the data was looked at is missing."""
    found = {(tree.execution_id, tree.attempt): tree for tree in data.trees(groups)}
    return [[found[one.key] for one in group.members if one.key in found] for group in groups]


def total_updates(data: TrainData, settings: TrainSettings) -> int:
    """Of all epochs, up to `max_updates`."""
    total = 0
    for epoch in range(settings.epochs):
        for batch in batches(data.groups, settings, epoch):
            members = sum(len(group.members) for group in batch)
            total += number_of_parts(len(batch), members, settings.updates_per_batch)
        if settings.max_updates and total >= settings.max_updates:
            return settings.max_updates
    return total
