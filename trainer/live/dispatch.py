"""Which groups run and which are trained, decided by numbers alone. Pure.

B groups are a batch, mu batches a burst; weights are published after each burst. At the beginning of a burst
groups are dispatched until Q_b = (phi + mu) B of them are not consumed (QwenGyre, arXiv 2609.33848). Here the
staleness of a group is the number of bursts between its dispatch and its consumption; publications are never
more, and fewer where a burst learned nothing. It never exceeds ceil(phi / mu): whatever is ready first is
consumed first, but only while all that wait can still be consumed in time. Looking at this burst alone would
not do: from phi = 2 mu on, more groups than a burst has places can come to their limit at once. Nothing is
ever discarded. A run that was shortened and then lengthened may be too late for some: the oldest go first.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far executions may be ahead of training."""

    groups_per_batch: int
    """B"""
    burst: int = 1
    """mu"""
    look_ahead: float = 0.0
    """phi"""
    batches: int
    """Of the whole run."""

    @property
    def depth(self) -> int:
        """Q_b: groups that are dispatched and not consumed at the beginning of a burst."""
        return math.floor((self.look_ahead + self.burst) * self.groups_per_batch + 1e-9)

    @property
    def bound(self) -> int:
        """The largest staleness, in bursts: no more publications than that."""
        return math.ceil(self.look_ahead / self.burst - 1e-9)

    @property
    def bursts(self) -> int:
        """The last one may be shorter."""
        return math.ceil(self.batches / self.burst)


@dataclass(slots=True, kw_only=True)
class Dispatch:
    """Groups by number, in the order of dispatch. A checkpoint remembers all but what is private."""

    pace: Pace
    burst: int = 0
    batch: int = 0
    """Batches that are done, or were when the burst began."""
    dispatched: int = 0
    """The number of the next group."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Group that is not consumed yet -> the burst that it was dispatched in."""
    _places: int = 0
    """Left in this burst."""

    @property
    def over(self) -> bool:
        """Whether the run has no burst left."""
        return self.batch >= self.pace.batches

    @property
    def batches(self) -> int:
        """Of this burst: the last one may be shorter."""
        return max(0, min(self.pace.burst, self.pace.batches - self.batch))

    def begin_burst(self) -> list[int]:
        """The groups to be dispatched now. Never more than the rest of the run can consume."""
        left = (self.pace.batches - self.batch) * self.pace.groups_per_batch
        self._places = self.batches * self.pace.groups_per_batch
        wanted = min(self.pace.depth, left) - len(self.waiting)
        new = list(range(self.dispatched, self.dispatched + max(0, wanted)))
        self.waiting |= dict.fromkeys(new, self.burst)
        self.dispatched += len(new)
        return new

    @property
    def places(self) -> int:
        """Groups that this burst still takes."""
        return self._places

    def may_enter(self, group: int) -> bool:
        """Whether a group that is ready may be consumed now: the others can then still be in time.

        Of a run that was shortened while groups were on their way some will never be consumed: then
        whichever comes first may. Lengthened again it may have left more old ones than can be in time.
        """
        if group not in self.waiting or not self._places:
            return False
        if len(self.waiting) > self._places + self._later(self.pace.batches):
            return True
        if not self._in_time(self.waiting.values(), self._places):
            return self.waiting[group] == min(self.waiting.values())
        others = [since for other, since in self.waiting.items() if other != group]
        return self._in_time(others, self._places - 1)

    def _in_time(self, dispatched: Collection[int], places: int) -> bool:
        """Whether groups of these bursts can all be consumed before their limits, with so many places now."""
        return all(
            place < places + self._later(since + self.pace.bound - self.burst)
            for place, since in enumerate(sorted(dispatched))
        )

    def _later(self, bursts: int) -> int:
        """Groups that so many bursts after this one can consume."""
        batches = self.pace.batches - self.batch - self.batches
        return min(max(0, bursts) * self.pace.burst, batches) * self.pace.groups_per_batch

    def consume(self, group: int) -> int:
        """Its staleness, in bursts."""
        if not self.may_enter(group):
            raise ValueError(f"group {group} may not be consumed now")
        self._places -= 1
        return self.burst - self.waiting.pop(group)

    def end_burst(self) -> None:
        if self._places:
            raise ValueError(f"the burst has {self._places} places left")
        self.batch += self.batches
        self.burst += 1
