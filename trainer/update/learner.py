"""Updates of a model from batches of trees. Knows no files: `train.py` and a live run use the same.

Every rank has all trees and all numbers about targets; only passes and gradients are divided. So each knows
the same loss and decides the same.

Shapes: T targets of an update, K of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from gyre.trainer.data.checks import Compared
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.gspo import Objective, needs_now
from gyre.trainer.pack.balance import micro_batches
from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.pack.piece import Floats32, Piece, Targets
from gyre.trainer.pack.work import measure
from gyre.trainer.settings import TrainSettings
from gyre.trainer.update.batch import Batch, by_execution, computed, deal, in_order
from gyre.trainer.update.computing import Computing, DoesNotFit
from gyre.trainer.update.guard import Guard
from gyre.trainer.update.network import Network
from gyre.trainer.update.opened import Old, Opened
from gyre.trainer.update.optimizer import (
    gradients,
    make_optimizer,
    scale_,
    set_lr,
    take_step,
    trained_parameters,
)
from gyre.trainer.update.ranks import OneProcess, Ranks
from gyre.trainer.update.report import Phases, Tokens, UpdateReport
from gyre.trainer.update.schedule import lr_at
from gyre.trainer.update.share import Share
from gyre.trainer.update.streamed import Streamed

Done = TypeVar("Done")
Weights = Mapping[str, torch.Tensor]


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a checkpoint remembers beside weights and optimizer."""

    update: int = 0
    """Done, those that were skipped included."""
    bad_in_a_row: int = 0
    bad: int = 0
    token_budget: int


class Learner:
    """What a run does with it: `begin` and `update`, or `stream`. The rest is for those two."""

    def __init__(
        self,
        network: Network,
        settings: TrainSettings,
        *,
        total_updates: int,
        reference: Network | None = None,
        ranks: Ranks | None = None,
        max_gap: float | None = None,
        stop: Callable[[], bool] = lambda: False,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`max_gap`: as `Guard` has it; `stop` is asked between pieces; `at` is told of each step, for tests.

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
        self.halved = 0
        """How often the budget was, since the last update."""
        self._reference = reference
        self._computing = Computing(self.ranks, stop, at)
        self._told = at
        self._guard = Guard(max_gap)
        self._phases = Phases()
        """Of the update that comes next."""

    @property
    def diverged(self) -> bool:
        return self.progress.bad_in_a_row >= self.settings.max_bad_updates

    @property
    def lr(self) -> float:
        """Of the update that comes next."""
        return lr_at(self.progress.update, self.settings.optimizer, self.total_updates)

    @property
    def compared(self) -> Compared | None:
        """The last comparison of what was sampled under a version with its weights."""
        return self._guard.compared

    def go_on_from(self, progress: Progress) -> None:
        self.progress = progress
        if progress.update:
            self._guard.dismiss()

    def served_as(self, version: str) -> None:
        """Engines have the weights of now, under this name: before these change, what was sampled is compared
        with them."""
        self._guard.served_as(version)

    def begin(self, groups: Sequence[Sequence[TrainTree]]) -> Batch:
        """The batch of these groups, with old log-probabilities of all but its first update."""
        batch = Batch(parts=deal(groups, self.settings.updates_per_batch))
        self._add_old(batch, batch.parts[1:])
        return batch

    def update(self, batch: Batch, part: int) -> UpdateReport:
        """One optimizer step on a part of the batch; parts are to be taken in order.

        Raises:
            Stopped: `stop` said so.
            TrainError: recorded log-probabilities are another model's, or memory is too small for a path.
        """

        def old(targets: Targets, pieces: Sequence[Piece]) -> torch.Tensor:
            return torch.from_numpy(in_order(targets, batch.old))

        phases, self._phases = self._phases, Phases()
        opened = self.open(old if part else None, phases)
        opened.add(batch.parts[part])
        report = opened.close()
        batch.forget(part)
        return report

    def stream(self, *, groups: int) -> Streamed:
        """A batch of so many groups, which come one after the other."""
        return Streamed(self, groups)

    def open(self, old: Old | None, phases: Phases) -> Opened:
        return Opened(self, old, phases)

    def share(self, trees: Sequence[TrainTree], old: Old | None, phases: Phases) -> Share | None:
        """Add the gradients of these executions to what is there; None: there are none."""
        left = computed(trees, self.settings.loss)
        if not left:
            return None
        with phases("pack"):
            packed = merge(left)
            pieces = self._pieces(packed)
        old_T = None if old is None else old(packed.targets, pieces)
        with phases("score"):
            objective = self._objective(packed.targets, pieces, old_T)
        with phases("pass"):
            sums = self._computing.differentiate(self.network, objective, pieces, self.progress.token_budget)
        return Share(
            targets=packed.targets,
            logprobs_T=sums.logprobs_T.cpu().numpy(),
            loss=sums.loss,
            entropy=sums.entropy,
            measured=objective.measured(sums.logprobs_T),
            tokens=self._tokens(packed, pieces),
        )

    def score(self, targets: Targets, pieces: Sequence[Piece]) -> torch.Tensor:
        """Log-probabilities with the weights of now, (T,)."""
        return self._computing.score(self.network, targets, pieces, self.progress.token_budget)

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Of `ids[1:]`, each after what stands before it, with the weights of now. Collective."""
        policy = self.network.policy
        with self.ranks.passes(policy.model, grad=False), torch.no_grad():
            ids_S = torch.tensor(ids, device=policy.device)
            logits_SV = policy.head(policy.hidden(ids_S[None])[0]).float()
            told_S = logits_SV[:-1].log_softmax(-1).gather(1, ids_S[1:, None])[:, 0]
            return [float(value) for value in told_S]

    def fitting(self, work: Callable[[], Done]) -> Done:
        """Its result, at half the budget as often as needed; each time gradients are gone.

        Later updates keep to what was found.
        """
        while True:
            try:
                return work()
            except DoesNotFit:
                pass
            self.drop_gradients()
            if self.network.device.type == "cuda":
                torch.cuda.empty_cache()
            self.progress.token_budget = max(1, self.progress.token_budget // 2)
            self.halved += 1

    def step(self, shares: Sequence[Share], executions: int) -> float:
        """The gradients' norm, not finite where the step was not taken.

        Raises:
            TrainError: the shares are not of this policy, or the optimizer does not fit into memory.
        """
        grads = gradients(self.parameters.values())
        scale_(grads, 1 / executions)
        norm = self.ranks.norm(grads)
        if not (math.isfinite(sum(share.loss for share in shares)) and math.isfinite(norm)):
            self.progress.bad += 1
            self.progress.bad_in_a_row += 1
            return math.nan
        self._guard.check([share.targets for share in shares], [share.logprobs_T for share in shares])
        limit = self.settings.optimizer.clip_norm
        if limit and norm > limit:
            scale_(grads, limit / norm)
        set_lr(self.optimizer, self.lr)
        self._told("step")
        take_step(self.optimizer)
        self.progress.bad_in_a_row = 0
        return norm

    def finish(self) -> None:
        """An update is done, or skipped."""
        self.progress.update += 1
        self.halved = 0

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of those that are trained."""
        return {name: own.detach().clone() for name, own in self.parameters.items()}

    @contextmanager
    def at(self, weights: Weights) -> Iterator[None]:
        """With these in place of those of now."""
        now = self.weights()
        self._set(weights)
        try:
            yield
        finally:
            self._set(now)

    def _set(self, weights: Weights) -> None:
        with torch.no_grad():
            for name, own in self.parameters.items():
                own.copy_(weights[name])

    def _pieces(self, packed: Packed) -> list[Piece]:
        budget = self.progress.token_budget
        return micro_batches(packed.forest, budget=budget, ranks=self.ranks.size)[self.ranks.rank]

    def _objective(self, targets: Targets, pieces: Sequence[Piece], old_T: torch.Tensor | None) -> Objective:
        now_T = reference_T = None
        if old_T is not None and needs_now(self.settings.loss):
            now_T = self.score(targets, pieces)
        if self._reference is not None:
            budget = self.progress.token_budget
            reference_T = self._computing.score(self._reference, targets, pieces, budget)
        return Objective.of(
            targets,
            self.settings.loss,
            old_T=old_T,
            now_T=now_T,
            reference_T=reference_T,
            device=self.network.device,
        )

    def _tokens(self, packed: Packed, pieces: Sequence[Piece]) -> Tokens:
        tree = torch.tensor(float(sum(map(len, pieces))), dtype=torch.float64, device=self.network.device)
        self.ranks.sum_(tree)
        return Tokens(tree=int(tree), flat=measure(packed.forest).flat_tokens)

    def _add_old(self, batch: Batch, parts: Sequence[Sequence[TrainTree]]) -> None:
        """Each part by itself, cut into the pieces that its update will compute.

        Otherwise the same weights would give another number: 1 % of a token in bfloat16, which is beyond
        what an execution may change before it is clipped.
        """
        left = [trees for part in parts if (trees := computed(part, self.settings.loss))]
        if left:
            with self._phases("old"):
                batch.old |= self.fitting(lambda: self._old(left))

    def _old(self, parts: Sequence[list[TrainTree]]) -> dict[str, Floats32]:
        found: dict[str, Floats32] = {}
        for trees in parts:
            packed = merge(trees)
            logprobs_T = self.score(packed.targets, self._pieces(packed))
            found |= by_execution(packed.targets, logprobs_T.cpu().numpy())
        return found
