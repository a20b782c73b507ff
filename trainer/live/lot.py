"""The groups of a live run on their way: dispatched, finished, built into trees, consumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import UnusableError
from gyre.trainer.live.assignment import Assignment, Finished, Group
from gyre.trainer.live.dispatch import Dispatch
from gyre.trainer.live.groups import BuiltGroup, Sizes, built
from gyre.trainer.live.jobs import Jobs
from gyre.trainer.live.reports import Trained
from gyre.trainer.live.state import Waiting
from gyre.trainer.live.trees import OnlineTrees
from gyre.trainer.settings import TrainSettings


class Submits(Protocol):
    def submit(self, assignment: Assignment) -> None: ...


@dataclass(slots=True)
class _Sent:
    """A group that is dispatched."""

    group: Group
    update: int
    """At its dispatch."""
    at: float


@dataclass(slots=True)
class Lot:
    """`dispatch` decides, this carries out."""

    jobs: Jobs
    rollouts: Submits
    online: OnlineTrees
    decisions: Dispatch
    settings: TrainSettings
    sizes: Sizes
    sampled: int = 0
    """Tokens of all groups that were consumed by this process."""
    _sent: dict[str, _Sent] = field(default_factory=dict)
    _consumed: list[Group] = field(default_factory=list)
    """In the burst under way."""
    _trained: list[Trained] = field(default_factory=list)
    """Of the batch under way."""
    _ran: int = 0
    _failures: list[str] = field(default_factory=list)

    def void_later(self, version: int) -> None:
        """What was dispatched after a checkpoint that is gone, and run with weights that are too."""
        ahead = deepcopy(self.decisions)
        ahead.begin_burst()
        self.jobs.void_later(version, ahead.dispatched)

    def go_on_with(self, waiting: Sequence[Waiting]) -> None:
        """Groups that an earlier process dispatched. What of them has finished is not run again."""
        for one in waiting:
            self._send(one.index, one.burst, one.version, one.update)

    def dispatch(self, version: str, update: int) -> None:
        """What the burst that begins may dispatch."""
        self._consumed.clear()
        for index in self.decisions.begin_burst():
            self._send(index, self.decisions.burst, version, update)

    @property
    def waiting(self) -> list[Waiting]:
        """For a checkpoint."""
        return [
            Waiting(
                index=sent.group.index,
                burst=sent.group.burst,
                version=sent.group.version,
                update=sent.update,
            )
            for sent in self._sent.values()
        ]

    def may_enter(self, key: str) -> bool:
        return self.decisions.may_enter(self._sent[key].group.index)

    def consume(self, finished: Finished, version: str, update: int) -> list[TrainTree]:
        """The group's trees, to be trained now. `version` is what engines serve, after `update` updates.

        Raises:
            UnusableError: nothing of it can be trained, for a reason that is the engine's.
        """
        sent = self._sent.pop(finished.key)
        self._consumed.append(sent.group)
        made = built(finished, self.online, self.settings, self.sizes)
        self.decisions.consume(sent.group.index)
        # Bursts decide, publications are told: one that had nothing to learn from published nothing.
        staleness = int(version) - int(sent.group.version)
        self.sampled += made.sampled
        self._ran += sum(state.ran for state in finished.states)
        self._failures += [state.reason for state in finished.states if not state.ran]
        self._failures += [problem.message for _, problem in finished.failures]
        self._trained.append(_trained(sent, made, finished, staleness, update))
        return made.trees

    def end_batch(self) -> list[Trained]:
        """The groups of the batch.

        Raises:
            UnusableError: not one of its executions got as far as an answered call.
        """
        trained, self._trained = self._trained, []
        ran, self._ran = self._ran, 0
        failures, self._failures = self._failures, []
        if failures and not ran:
            text = f"none of the {len(failures)} executions of the last batch got an answer from the engine"
            raise UnusableError(f"{text}: {failures[-1]}", "see `executions/` in the folder of the run")
        return trained

    def void(self) -> None:
        """Nothing that is not in a checkpoint is to be trained: whoever goes on runs it all anew."""
        for group in [*self._consumed, *(sent.group for sent in self._sent.values())]:
            self.jobs.void(self.jobs.of_group(group))

    def _send(self, index: int, burst: int, version: str, update: int) -> None:
        group = self.jobs.group(index, burst=burst, version=version)
        self._sent[group.key] = _Sent(group, update, time.monotonic())
        self.rollouts.submit(self.jobs.of_group(group))


def _trained(sent: _Sent, made: BuiltGroup, finished: Finished, staleness: int, update: int) -> Trained:
    return Trained(
        key=made.key,
        task=sent.group.task.name,
        burst=sent.group.burst,
        staleness=staleness,
        update_staleness=update - sent.update,
        scores=made.scores,
        outcomes=made.outcomes,
        left_out=made.left_out,
        sampled=made.sampled,
        kept=made.kept,
        seconds=finished.at - sent.at,
        seconds_scoring=sum(_scoring(state.details) for state in finished.states),
        seconds_tree=made.seconds,
    )


def _scoring(details: dict[str, object]) -> float:
    seconds = details.get("scorer_seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0
