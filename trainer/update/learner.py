"""Updates of a model from batches of trees. Knows no files: `train.py` and a live run use the same.

Every rank has all trees and all numbers about targets; only passes and gradients are divided. So each knows
the same loss and decides the same.

Shapes: T targets of an update, K of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from gyre.trainer.data.checks import check_gap
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.gspo import Objective, needs_now
from gyre.trainer.pack.balance import micro_batches
from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.pack.piece import Floats32, Piece, Targets
from gyre.trainer.pack.work import measure
from gyre.trainer.settings import TrainSettings
from gyre.trainer.update.batch import Batch, by_execution, computed, deal, in_order
from gyre.trainer.update.computing import Computing, DoesNotFit, Sums, out_of_memory
from gyre.trainer.update.network import Network
from gyre.trainer.update.optimizer import gradients, make_optimizer, scale_, set_lr, trained_parameters
from gyre.trainer.update.ranks import OneProcess, Ranks
from gyre.trainer.update.report import (
    Phases,
    Rewards,
    Skipped,
    Tokens,
    UpdateReport,
    peak_memory,
    version_counts,
)
from gyre.trainer.update.schedule import lr_at

Done = TypeVar("Done")


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a checkpoint remembers beside weights and optimizer."""

    update: int = 0
    """Done, those that were skipped included."""
    bad_in_a_row: int = 0
    bad: int = 0
    token_budget: int


class Learner:
    def __init__(
        self,
        network: Network,
        settings: TrainSettings,
        *,
        total_updates: int,
        reference: Network | None = None,
        ranks: Ranks | None = None,
        stop: Callable[[], bool] = lambda: False,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`stop` is asked between pieces; `at` is told of each step, for tests.

        Raises:
            TrainError: patterns of parameters that match nothing.
        """
        self.network = network
        self.settings = settings
        self.total_updates = total_updates
        self.ranks: Ranks = ranks or OneProcess()
        self.parameters = trained_parameters(network.policy.model, settings.train, settings.freeze)
        self.optimizer = make_optimizer(self.parameters, settings.optimizer)
        self.progress = Progress(token_budget=settings.token_budget)
        self._reference = reference
        self._computing = Computing(self.ranks, stop, at)
        self._at = at
        self._compared = False
        self._phases = Phases()
        """Of the update that comes next."""
        self._halved = 0

    @property
    def diverged(self) -> bool:
        return self.progress.bad_in_a_row >= self.settings.max_bad_updates

    def go_on_from(self, progress: Progress) -> None:
        """A policy that has been updated is not the one that sampled: nothing to compare any more."""
        self.progress = progress
        self._compared = progress.update > 0

    def begin(self, groups: Sequence[Sequence[TrainTree]], *, keep_start: bool = False) -> Batch:
        """The batch of these groups, with old log-probabilities of all but its first update.

        `keep_start` keeps a copy of the trained weights, for groups that are added later.
        """
        batch = Batch(parts=deal(groups, self.settings.updates_per_batch))
        if keep_start:
            batch.start = {name: own.detach().clone() for name, own in self.parameters.items()}
        self._add_old(batch, batch.parts[1:])
        return batch

    def extend(self, batch: Batch, trees: Sequence[TrainTree]) -> None:
        """One more update of a batch under way: its old policy is that of the batch's start as well."""
        if batch.start is None:
            raise ValueError("the batch was begun without `keep_start`")
        now = {name: own.detach().clone() for name, own in self.parameters.items()}
        self._set_weights(batch.start)
        try:
            self._add_old(batch, [trees])
        finally:
            self._set_weights(now)
        batch.parts.append(list(trees))

    def update(self, batch: Batch, part: int) -> UpdateReport:
        """One optimizer step on a part of the batch; parts are to be taken in order.

        Raises:
            Stopped: `stop` said so.
            TrainError: recorded log-probabilities are another model's, or memory is too small for a path.
        """
        trees = [tree for tree in batch.parts[part] if tree.targets]
        old = batch.old if part else None
        phases, self._phases = self._phases, Phases()
        try:
            report = self._fitting(lambda: self._update(trees, old, phases))
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.progress.update += 1
        self._halved = 0
        batch.forget(part)
        return report

    def _update(
        self, trees: list[TrainTree], old: Mapping[str, Floats32] | None, phases: Phases
    ) -> UpdateReport:
        left = computed(trees, self.settings.loss)
        if not left:
            return self._report(trees, phases)
        with phases("pack"):
            packed = merge(left)
            pieces = self._pieces(packed)
        old_T = None if old is None else torch.from_numpy(in_order(packed.targets, old))
        with phases("score"):
            objective = self._objective(packed.targets, pieces, old_T)
        with phases("pass"):
            sums = self._computing.differentiate(self.network, objective, pieces, self.progress.token_budget)
        with phases("step"):
            norm = self._step(sums, packed.targets, len(trees))
        return self._report(trees, phases, packed, pieces, objective, sums, norm)

    def _pieces(self, packed: Packed) -> list[Piece]:
        budget = self.progress.token_budget
        return micro_batches(packed.forest, budget=budget, ranks=self.ranks.size)[self.ranks.rank]

    def _objective(self, targets: Targets, pieces: list[Piece], old_T: torch.Tensor | None) -> Objective:
        now_T = reference_T = None
        budget = self.progress.token_budget
        if old_T is not None and needs_now(self.settings.loss):
            now_T = self._computing.score(self.network, targets, pieces, budget)
        if self._reference is not None:
            reference_T = self._computing.score(self._reference, targets, pieces, budget)
        return Objective.of(
            targets,
            self.settings.loss,
            old_T=old_T,
            now_T=now_T,
            reference_T=reference_T,
            device=self.network.device,
        )

    def _fitting(self, work: Callable[[], Done]) -> Done:
        """Its result, at half the budget as often as needed. Later updates keep to what was found."""
        while True:
            try:
                return work()
            except DoesNotFit:
                pass
            self.optimizer.zero_grad(set_to_none=True)
            if self.network.device.type == "cuda":
                torch.cuda.empty_cache()
            self.progress.token_budget = max(1, self.progress.token_budget // 2)
            self._halved += 1

    def _step(self, sums: Sums, targets: Targets, executions: int) -> float:
        """The gradients' norm, not finite where the step was not taken."""
        grads = gradients(self.parameters.values())
        scale_(grads, 1 / executions)
        norm = self.ranks.norm(grads)
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            self.progress.bad += 1
            self.progress.bad_in_a_row += 1
            return math.nan
        if not self._compared:
            check_gap(targets.behaviour_T, sums.logprobs_T.cpu().numpy())
            self._compared = True
        limit = self.settings.optimizer.clip_norm
        if limit and norm > limit:
            scale_(grads, limit / norm)
        set_lr(self.optimizer, self._lr())
        self._at("step")
        try:
            self.optimizer.step()
        except (RuntimeError, MemoryError) as problem:
            if not out_of_memory(problem):
                raise
            text = "the optimizer's two numbers for each parameter do not fit into memory"
            raise TrainError(
                text, "train fewer parameters (`train`, `freeze`), or in more processes"
            ) from problem
        self.progress.bad_in_a_row = 0
        return norm

    def _lr(self) -> float:
        return lr_at(self.progress.update, self.settings.optimizer, self.total_updates)

    def _add_old(self, batch: Batch, parts: Sequence[Sequence[TrainTree]]) -> None:
        """Each part by itself, cut into the pieces that its update will compute.

        Otherwise the same weights would give another number: 1 % of a token in bfloat16, which is beyond
        what an execution may change before it is clipped.
        """
        left = [trees for part in parts if (trees := computed(part, self.settings.loss))]
        if left:
            with self._phases("old"):
                batch.old |= self._fitting(lambda: self._old(left))

    def _old(self, parts: Sequence[list[TrainTree]]) -> dict[str, Floats32]:
        found: dict[str, Floats32] = {}
        for trees in parts:
            packed = merge(trees)
            logprobs_T = self._computing.score(
                self.network, packed.targets, self._pieces(packed), self.progress.token_budget
            )
            found |= by_execution(packed.targets, logprobs_T.cpu().numpy())
        return found

    def _set_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, own in self.parameters.items():
                own.copy_(weights[name])

    def _report(
        self,
        trees: list[TrainTree],
        phases: Phases,
        packed: Packed | None = None,
        pieces: Sequence[Piece] = (),
        objective: Objective | None = None,
        sums: Sums | None = None,
        norm: float = 0.0,
    ) -> UpdateReport:
        skipped = Skipped.NO if math.isfinite(norm) else Skipped.NOT_FINITE
        targets = packed.targets if packed else None
        return UpdateReport(
            update=self.progress.update + 1,
            skipped=skipped if packed else Skipped.NO_VARIANCE,
            loss=sums.loss / len(trees) if sums else 0.0,
            grad_norm=norm,
            lr=self._lr(),
            entropy=sums.entropy / len(targets) if sums and targets else 0.0,
            executions=len(trees),
            no_variance=sum(not tree.advantage for tree in trees) / len(trees) if trees else 0.0,
            rewards=Rewards.of(trees),
            targets=len(targets) if targets else 0,
            tokens=self._tokens(packed, pieces) if packed else Tokens(),
            seconds=phases.seconds,
            peak_memory=int(self.ranks.max(peak_memory(self.network.device))),
            token_budget=self.progress.token_budget,
            halved=self._halved,
            versions=version_counts(targets) if targets else {},
            objective=objective.report(sums.logprobs_T) if objective and sums else None,
        )

    def _tokens(self, packed: Packed, pieces: Sequence[Piece]) -> Tokens:
        tree = torch.tensor(float(sum(map(len, pieces))), dtype=torch.float64, device=self.network.device)
        self.ranks.sum_(tree)
        return Tokens(tree=int(tree), flat=measure(packed.forest).flat_tokens)
