"""What one update was like."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from statistics import fmean

import numpy as np
import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.gspo_report import LossReport
from gyre.trainer.pack.piece import Targets


class Skipped(StrEnum):
    """Why an update left the weights as they were."""

    NO = "no"
    NO_VARIANCE = "no_variance"
    """No execution has an advantage, so there is nothing to learn."""
    NOT_FINITE = "not_finite"
    """Loss or gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Of an update, over all ranks."""

    tree: int = 0
    """Computed in pieces, with what a split repeats."""
    flat: int = 0
    """Of all paths, each alone."""

    @classmethod
    def sum(cls, each: Iterable[Tokens]) -> Tokens:
        all_of_them = list(each)
        return cls(tree=sum(one.tree for one in all_of_them), flat=sum(one.flat for one in all_of_them))

    @property
    def shared(self) -> float:
        return 1 - self.tree / self.flat if self.flat else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Of an update's executions, as they were scored."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, trees: Sequence[TrainTree]) -> Rewards | None:
        """None: there are none."""
        rewards = [tree.reward for tree in trees]
        if not rewards:
            return None
        return cls(mean=fmean(rewards), min=min(rewards), max=max(rewards))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    update: int
    """From 1."""
    skipped: Skipped
    loss: float
    """Divided by `executions`."""
    grad_norm: float
    """Before it is clipped."""
    lr: float
    entropy: float
    """Mean over the computed targets, in nats, at their temperatures."""
    executions: int
    """Scored ones with targets: what loss and gradients are divided by."""
    no_variance: float
    """Share of them without an advantage: they are not computed, unless there is a divergence to hold."""
    rewards: Rewards | None
    """Of `executions`."""
    targets: int
    """Computed."""
    tokens: Tokens
    seconds: Mapping[str, float]
    """By phase."""
    peak_memory: int
    """Bytes: of the device since training began, or of the process where there is none; the largest rank."""
    token_budget: int
    """That the update was computed with."""
    halved: int
    """How often memory did not suffice, and the update was done anew with half the budget."""
    versions: Mapping[str, int]
    """Computed targets by the policy version that sampled them."""
    objective: LossReport | None
    """None where nothing was computed."""

    def metrics(self) -> dict[str, float]:
        """Numbers by name, as `tokens/shared`, without what is not known. All are in docs/training.md."""
        total = sum(self.seconds.values())
        found: dict[str, float] = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "entropy": self.entropy,
            "executions": self.executions,
            "no_variance": self.no_variance,
            "targets": self.targets,
            "tokens/tree": self.tokens.tree,
            "tokens/flat": self.tokens.flat,
            "tokens/shared": self.tokens.shared,
            "tokens/per_s": self.tokens.tree / total if total else 0.0,
            "seconds/total": total,
            "memory/peak_bytes": self.peak_memory,
            "memory/token_budget": self.token_budget,
            "memory/halved": self.halved,
            "skipped/no_variance": int(self.skipped is Skipped.NO_VARIANCE),
            "skipped/not_finite": int(self.skipped is Skipped.NOT_FINITE),
        }
        if self.rewards:
            found |= {f"reward/{name}": value for name, value in asdict(self.rewards).items()}
        found |= {f"seconds/{phase}": seconds for phase, seconds in self.seconds.items()}
        return found | (self.objective.metrics() if self.objective else {})


@dataclass(slots=True)
class Phases:
    """Seconds spent on each phase of an update."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def version_counts(targets: Targets) -> dict[str, int]:
    counts = np.bincount(targets.version_T + 1, minlength=len(targets.versions) + 1).tolist()
    return {name: count for name, count in zip(targets.versions, counts[1:], strict=True) if count}


def peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
