"""A batch: some groups, dealt into updates, and the log-probabilities of the policy at its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.pack.piece import Floats32, Targets
from gyre.trainer.settings import LossSettings


@dataclass(slots=True, kw_only=True)
class Batch:
    parts: list[list[TrainTree]]
    """What each of its updates trains on."""
    old: dict[str, Floats32] = field(default_factory=dict)
    """By execution, as `Targets.executions` names them: of each of its targets, in their order, the
    log-probability at the batch's start. The first part has none: there the policy is the old one."""

    def forget(self, part: int) -> None:
        """Old log-probabilities that no update needs any more."""
        for name in {tree.name for tree in self.parts[part]}:
            self.old.pop(name, None)


def deal(groups: Sequence[Sequence[TrainTree]], updates: int) -> list[list[TrainTree]]:
    """The groups in order, cut into `updates` parts of nearly equal number; a group stays whole.

    Executions are dealt where there are fewer groups than updates, and there are fewer parts where there
    are fewer executions. No part is empty.
    """
    if len(groups) >= updates:
        units = [list(group) for group in groups]
    else:
        units = [[tree] for group in groups for tree in group]
    ends = cuts(len(units), number_of_parts(len(groups), len(units), updates))
    return [[tree for unit in units[start:end] for tree in unit] for start, end in pairwise((0, *ends))]


def cuts(units: int, parts: int) -> list[int]:
    """Where each part ends."""
    return [units * part // parts for part in range(1, parts + 1)]


def number_of_parts(groups: int, executions: int, updates: int) -> int:
    """How many updates a batch has; `executions` does not matter where there are groups enough."""
    return updates if groups >= updates else min(updates, executions)


def computed(trees: Sequence[TrainTree], loss: LossSettings) -> list[TrainTree]:
    """Those that give a gradient: a divergence is held everywhere, all else needs an advantage."""
    return [tree for tree in trees if tree.targets and (tree.advantage or loss.kl)]


def by_execution(targets: Targets, logprobs_T: Floats32) -> dict[str, Floats32]:
    """Cut into the runs of the executions: they stand one after the other."""
    ends = np.cumsum(np.bincount(targets.execution_T, minlength=len(targets.executions)))
    return dict(zip(targets.executions, np.split(logprobs_T, ends[:-1]), strict=True))


def in_order(targets: Targets, old: Mapping[str, Floats32]) -> Floats32:
    """The other way: (T,).

    Raises TrainError where one is missing: trees that could be read when the batch began cannot be now.
    """
    missing = [name for name in targets.executions if name not in old]
    if missing:
        raise TrainError(
            f"the checkpoint has no old log-probabilities of `{missing[0]}`: the batch was of other trees",
            "trees have been damaged since; bring them back, or build them again",
        )
    return np.concatenate([old[name] for name in targets.executions])
