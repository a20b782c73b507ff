"""What looks wrong with a run that goes on, told once each time it begins to. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gyre.trainer.live.reports import BatchReport

PATIENCE = 3
"""So many batches in a row without two different scores in any group are told of, and so many more again."""


@dataclass(slots=True)
class Alike:
    """Whether scores have stopped to say anything."""

    tell: Callable[[str], None]
    batches: int = 0
    """In a row in which no group had two different scores."""

    def look(self, report: BatchReport) -> None:
        if any(group.varies for group in report.groups):
            self.batches = 0
            return
        self.batches += 1
        if self.batches % PATIENCE == 0:
            self.tell(_alike(report, self.batches))


def _alike(report: BatchReport, batches: int) -> str:
    text = (
        f"no group has had two different scores for {batches} batches ({_said(report)}): nothing is learned"
    )
    return f"{text}; tasks may be too hard or too easy for the policy, or the scorer may not look at the work"


def _said(report: BatchReport) -> str:
    scores = report.scores
    if not scores:
        return "the last one had no scores"
    if len(set(scores)) == 1:
        return f"all {len(scores)} of the last batch are {scores[0]:g}"
    return f"in the last one they differ from group to group only, {min(scores):g} to {max(scores):g}"
