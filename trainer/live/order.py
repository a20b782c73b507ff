"""Which task a group is of: shuffled, by weight, and the same whenever it is asked. Pure.

Each list is gone through in an order of its own, shuffled anew every time round. Which list comes next
follows from the weights. So the task of a group depends on seed and lists alone, and a run that goes on needs
to remember nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Weighted(Generic[T]):
    """A list of tasks that are drawn alike."""

    tasks: Sequence[T]
    weight: float = 1.0


@dataclass(slots=True)
class TaskOrder(Generic[T]):
    """`order[g]` is the task of group g."""

    lists: Sequence[Weighted[T]]
    seed: int
    _drawn: list[T] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    """Tasks drawn of each list."""
    _shuffled: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __getitem__(self, group: int) -> T:
        while len(self._drawn) <= group:
            self._drawn.append(self._next())
        return self._drawn[group]

    def _next(self) -> T:
        if not self._counts:
            self._counts = [0] * len(self.lists)
        # The list whose next task is due first, if each one's come at equal distances; the first of several.
        due = [(count + 1) / each.weight for count, each in zip(self._counts, self.lists, strict=True)]
        which = due.index(min(due))
        count = self._counts[which]
        self._counts[which] += 1
        tasks = self.lists[which].tasks
        turn, place = divmod(count, len(tasks))
        return tasks[self._turn(which, turn)[place]]

    def _turn(self, which: int, turn: int) -> list[int]:
        """The order of a list in one of its rounds. Raw draws stay the same over versions of NumPy."""
        if (which, turn) not in self._shuffled:
            self._shuffled = {key: value for key, value in self._shuffled.items() if key[0] != which}
            seed = np.random.SeedSequence([self.seed, which, turn])
            draws = np.random.PCG64(seed).random_raw(len(self.lists[which].tasks))
            self._shuffled[which, turn] = np.argsort(draws, kind="stable").tolist()
        return self._shuffled[which, turn]
