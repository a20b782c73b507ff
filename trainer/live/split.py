"""Where the time of a run went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.trainer.live.numbers import batch_numbers, phases
from gyre.trainer.live.reports import BatchReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    batches: int
    seconds: Mapping[str, float]
    """Wall clock by phase, one after the other."""
    rollout_s: float
    """From the dispatch of a group to its last score, mean over batches of the longest one. This, and what
    follows, runs beside the phases."""
    scoring_s: float
    """All executions together."""
    tree_s: float
    """Of the processor."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Of the wall clock."""
        return {phase: spent / self.total if self.total else 0.0 for phase, spent in self.seconds.items()}


def split(reports: Iterable[BatchReport]) -> Split:
    return split_of(batch_numbers(report) for report in reports)


def split_of(lines: Iterable[Mapping[str, Any]]) -> Split:
    """The same of lines of `metrics.jsonl`, of batches alone."""
    lines, seconds = list(lines), dict[str, float]()
    for line in lines:
        for phase, spent in phases(line).items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    longest = [line.get("group_seconds/max", 0.0) for line in lines]
    return Split(
        batches=len(lines),
        seconds=seconds,
        rollout_s=sum(longest) / len(lines) if lines else 0.0,
        scoring_s=sum(line.get("group_seconds/scoring", 0.0) for line in lines),
        tree_s=sum(line.get("group_seconds/tree", 0.0) for line in lines),
    )
