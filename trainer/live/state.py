"""What a checkpoint remembers of a live run beside weights and optimizer: a few numbers.

All else follows from them and the seed, or lies on the disk: which task a group is of (`order.py`), which
executions have finished (`execution.json` in their folders), what they said (the log).
"""

from __future__ import annotations

from typing import Any

import msgspec

from gyre.trainer.errors import TrainError
from gyre.trainer.live.dispatch import Dispatch, Pace


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is dispatched and not consumed."""

    index: int
    burst: int
    version: str
    update: int
    """These three as they were at its dispatch."""


class LiveState(msgspec.Struct, kw_only=True):
    """At the beginning of a burst, before anything of it is dispatched."""

    burst: int = 0
    batch: int = 0
    """Batches that are done."""
    dispatched: int = 0
    version: int = 0
    """Publications: the name of the weights that engines serve."""
    waiting: list[Waiting] = []
    alike_in_a_row: int = 0
    """Batches in which no group had two different scores."""

    def dispatch(self, pace: Pace) -> Dispatch:
        waiting = {group.index: group.burst for group in self.waiting}
        return Dispatch(
            pace=pace, burst=self.burst, batch=self.batch, dispatched=self.dispatched, waiting=waiting
        )


def as_json(state: LiveState) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(state)
    return found


def from_json(told: dict[str, Any] | None) -> LiveState:
    """Raises TrainError where a checkpoint is not of a live run."""
    if told is None:
        raise TrainError("the newest checkpoint is not of a live run", "give another folder with `--out`")
    try:
        return msgspec.convert(told, LiveState)
    except msgspec.ValidationError as problem:
        raise TrainError(f"the newest checkpoint is damaged: {problem}", "remove it") from problem
