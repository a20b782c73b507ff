"""An update under way: groups are added, each computed at once, and then one step is taken."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.gspo_measured import Measured
from gyre.trainer.gspo_report import LossReport
from gyre.trainer.pack.piece import Piece, Targets
from gyre.trainer.update.report import (
    Phases,
    Rewards,
    Skipped,
    Tokens,
    UpdateReport,
    peak_memory,
    version_counts,
)
from gyre.trainer.update.share import Share

if TYPE_CHECKING:
    from gyre.trainer.update.learner import Learner

Old = Callable[[Targets, Sequence[Piece]], torch.Tensor]
"""Log-probabilities at the batch's start, (T,), of targets that are computed in these pieces."""


class Opened:
    """Gradients of what was added lie in the parameters until it is closed. Whatever is raised ends it, and
    leaves the weights as they were."""

    def __init__(self, learner: Learner, old: Old | None, phases: Phases) -> None:
        """`old` None: the policy of now is the old one."""
        self._learner = learner
        self._old = old
        self._phases = phases
        self._trees: list[list[TrainTree]] = []
        self._shares: list[Share | None] = []
        """Of the first of `_trees`; None: nothing of it has an advantage."""

    def add(self, trees: Sequence[TrainTree]) -> None:
        """Executions that are computed together; an execution is never in two of these."""
        self._trees.append([tree for tree in trees if tree.targets])
        with self._or_dropped():
            self._learner.fitting(self._catch_up)

    def close(self) -> UpdateReport:
        """Take the step, if there is anything to learn."""
        shares = [share for share in self._shares if share is not None]
        trees = [tree for group in self._trees for tree in group]
        norm = 0.0
        try:
            if shares:
                with self._phases("step"):
                    norm = self._learner.step(shares, len(trees))
        finally:
            self._learner.drop_gradients()
        report = self._report(trees, shares, norm)
        self._learner.finish()
        return report

    @contextmanager
    def _or_dropped(self) -> Iterator[None]:
        kept = False
        try:
            yield
            kept = True
        finally:
            if not kept:
                self._learner.drop_gradients()

    def _catch_up(self) -> None:
        """Compute what is not yet. Once this was left by an error, gradients are gone: it is all of it."""
        done, self._shares = self._shares, []
        for trees in self._trees[len(done) :]:
            done.append(self._learner.share(trees, self._old, self._phases))
        self._shares = done

    def _report(self, trees: Sequence[TrainTree], shares: Sequence[Share], norm: float) -> UpdateReport:
        learner = self._learner
        taken = Skipped.NO if math.isfinite(norm) else Skipped.NOT_FINITE
        targets = sum(len(share.targets) for share in shares)
        return UpdateReport(
            update=learner.progress.update + 1,
            skipped=taken if shares else Skipped.NO_VARIANCE,
            loss=sum(share.loss for share in shares) / max(len(trees), 1),
            grad_norm=norm,
            lr=learner.lr,
            entropy=sum(share.entropy for share in shares) / max(targets, 1),
            executions=len(trees),
            no_variance=sum(not tree.advantage for tree in trees) / max(len(trees), 1),
            rewards=Rewards.of(trees),
            targets=targets,
            tokens=Tokens.sum(share.tokens for share in shares),
            seconds=self._phases.seconds,
            peak_memory=int(learner.ranks.max(peak_memory(learner.network.device))),
            token_budget=learner.progress.token_budget,
            halved=learner.halved,
            versions=_versions(shares),
            objective=_objective(shares),
        )


def _versions(shares: Sequence[Share]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for share in shares:
        counts.update(version_counts(share.targets))
    return dict(counts)


def _objective(shares: Sequence[Share]) -> LossReport | None:
    return LossReport.of(Measured.join([share.measured for share in shares])) if shares else None
