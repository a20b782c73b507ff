"""What batches, publications and evaluations of a live run were like. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

PASS = 1.0
"""A score from here on is a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A group as it was consumed."""

    key: str
    task: str
    burst: int
    """At its dispatch."""
    staleness: int
    """Publications between its dispatch and its consumption."""
    update_staleness: int
    """Updates between the two, those that were skipped included."""
    scores: Sequence[float]
    """Of its scored executions."""
    outcomes: Mapping[str, int]
    """Of all of its executions."""
    left_out: Mapping[str, int]
    """Executions that are not trained, by reason."""
    sampled: int
    """Unique sampled tokens of trainable calls."""
    kept: int
    """Of them admitted as targets."""
    seconds: float
    """From its dispatch to its last score; of a group that an earlier process dispatched, from when this one
    began."""
    seconds_scoring: float
    """Of all its executions together."""
    seconds_tree: float
    """Of the processor."""

    @property
    def varies(self) -> bool:
        return len(set(self.scores)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    batch: int
    """From 0."""
    burst: int
    version: str
    """That engines served meanwhile. Later batches of a burst start from newer weights."""
    groups: Sequence[Trained]
    updates: int
    """Optimizer steps that were taken; those without variance are not counted."""
    seconds: Mapping[str, float]
    """Wall clock by phase, one after the other: `wait` (for the first group, and between groups), `tree`,
    `train`, `publish`, `evaluate`."""
    tokens_tree: int = 0
    """Computed in its updates."""
    tokens_flat: int = 0
    """Of the same paths, each alone."""

    @property
    def scores(self) -> list[float]:
        return [score for group in self.groups for score in group.scores]

    @property
    def mean_score(self) -> float | None:
        return fmean(self.scores) if self.scores else None

    @property
    def pass_rate(self) -> float | None:
        return fmean(score >= PASS for score in self.scores) if self.scores else None

    @property
    def executions(self) -> int:
        return sum(sum(group.outcomes.values()) for group in self.groups)

    @property
    def kept_share(self) -> float | None:
        sampled = sum(group.sampled for group in self.groups)
        return sum(group.kept for group in self.groups) / sampled if sampled else None

    @property
    def tree_savings(self) -> float | None:
        """Share of the tokens of all computed paths that paths and executions have in common."""
        return 1 - self.tokens_tree / self.tokens_flat if self.tokens_flat else None

    @property
    def varied(self) -> int:
        """Groups with something to learn from."""
        return sum(group.varies for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    version: str
    update: int
    """Updates behind it, those that were skipped included."""
    seconds: float
    """Until all engines serve them."""
    checkpoint: float = 0.0
    """Seconds that writing them took, before that."""
    held: int = 0
    """Requests that were open at the engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    version: str
    update: int
    """Updates behind it, those that were skipped included."""
    temperature: float
    episodes: int
    """That were scored."""
    pass_rate: float | None
    mean_score: float | None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    completed: float | None = None
    """Share of executions with the outcome `completed`."""
