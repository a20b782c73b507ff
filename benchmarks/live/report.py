"""What was measured of live runs, the bar it is held against, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.live.cpu import PROXY, Spent
from benchmarks.report import Bar, Grid

MOST_PERCENT = 5.0
"""Of a run's CPU, for proxy and tree builder together."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run, from its start to its end."""

    name: str
    short: bool
    """For a look, without a bar."""
    batches: int
    executions: int
    seconds: dict[str, float]
    """Wall clock of all batches by phase, one after the other."""
    rollout_s: float
    """From the dispatch of a group to its last score: mean over batches of the longest one."""
    scoring_s: float
    """Of all scorers together, beside the phases; wall clock."""
    tree_s: float
    """Of the tree builder, of the processor."""
    spent: Spent

    @property
    def recording(self) -> float:
        """CPU share of proxy and tree builder, in percent."""
        return 100 * (self.spent.by_kind[PROXY] + self.tree_s) / self.spent.total


@dataclass
class Results:
    runs: list[Live] = field(default_factory=list)

    def bars(self) -> list[Bar]:
        return [
            Bar(
                name=f"{run.name}, proxy and tree builder",
                value=run.recording,
                limit=MOST_PERCENT,
                unit="% of CPU",
            )
            for run in self.runs
            if not run.short
        ]

    def grids(self) -> list[Grid]:
        return [_phases(self.runs), _processes(self.runs)] if self.runs else []


def _phases(runs: Sequence[Live]) -> Grid:
    names = list(dict.fromkeys(name for run in runs for name in run.seconds))
    head = ("seconds a batch", *names, "in all", "longest group", "scorers together")
    rows = [
        (
            f"{run.name}, {run.batches} batches of {run.executions / run.batches:.0f} executions",
            *(f"{run.seconds.get(name, 0.0) / run.batches:.2f}" for name in names),
            f"{sum(run.seconds.values()) / run.batches:.2f}",
            f"{run.rollout_s:.2f}",
            f"{run.scoring_s / run.batches:.2f}",
        )
        for run in runs
    ]
    return Grid("a live run, phase by phase", head, rows)


def _processes(runs: Sequence[Live]) -> Grid:
    kinds = list(runs[0].spent.by_kind)
    head = ("CPU seconds", "in all", *kinds, "tree builder (in the trainer)", "proxy + builder")
    rows = [
        (
            run.name,
            f"{run.spent.total:.1f}",
            *(f"{run.spent.by_kind[kind]:.1f}" for kind in kinds),
            f"{run.tree_s:.1f}",
            f"{run.recording:.1f} %",
        )
        for run in runs
    ]
    return Grid("a live run, process by process", head, rows)
