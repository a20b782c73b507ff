"""What executions are worth: scores as given, rewards, and advantages within a group. Pure.

    A_i = (r_i - mean(r)) / (std(r) + 1e-4)        over the scored executions of a group, std with n - 1

This is the group-relative advantage of GRPO (arXiv 2402.03300), which GSPO (arXiv 2507.18071) keeps. As
in QwenGyre (arXiv 2609.33848) the group's members are executions, not the rows they are cut into: an
execution that compacts often or has many sub-agents weighs no more than another. A group of one, and one
of equal rewards, has nothing to compare: 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gyre.proxy.executions import ExecutionOutcome
from gyre.treebuilder.errors import ScoreError
from gyre.treebuilder.summary import ExecutionSummary

EPSILON = 1e-4
"""In the denominator, so that a group that hardly differs does not get huge advantages."""
NEVER_TRAINED = (ExecutionOutcome.RUN_TIMEOUT, ExecutionOutcome.SCORER_FAILED)
SAID_OF_SCORES = tuple(outcome for outcome in ExecutionOutcome if outcome != ExecutionOutcome.OPEN)
"""The outcomes that can be given with a score, or instead of one."""

AttemptKey = tuple[str, int]
"""(execution_id, execution_attempt)"""


@dataclass(frozen=True, slots=True)
class Scored:
    """What is said of one execution: a score, why there is none, or what it belongs to.

    Raises:
        ScoreError: the score is no finite number, the outcome is unknown, or nothing is said.
    """

    execution_id: str
    attempt: int | None = None
    """None: the last one."""
    score: float | None = None
    outcome: str | None = None
    task: str | None = None
    group: str | None = None
    artifact: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ScoreError(f"the score of `{self.execution_id}` is {self.score}, which is no finite number")
        if self.outcome is not None and self.outcome not in SAID_OF_SCORES:
            hint = f"known outcomes: {', '.join(SAID_OF_SCORES)}"
            raise ScoreError(f"unknown outcome `{self.outcome}` of `{self.execution_id}`", hint)
        if all(value is None for value in (self.score, self.outcome, self.task, self.group)):
            hint = "give a score, or an outcome that says why there is none"
            raise ScoreError(f"nothing is said of `{self.execution_id}`", hint)


def reward(summary: ExecutionSummary) -> float | None:
    """The recorded score; 0 for an execution that left nothing to score. A timeout changes nothing."""
    if summary.score is None and summary.outcome == ExecutionOutcome.NO_ARTIFACT:
        return 0.0
    return summary.score


def left_out(summary: ExecutionSummary) -> str | None:
    """Why an execution is not trained: it then counts in no group. None when it is."""
    if summary.skipped is not None:
        return "skipped"
    if summary.evaluation:
        return "evaluation"
    if summary.superseded:
        return "superseded"
    if summary.outcome in NEVER_TRAINED:
        return summary.outcome
    worth = reward(summary)
    if worth is None:
        return "no_score"
    return None if math.isfinite(worth) else "score_not_finite"


def advantages(summaries: Iterable[ExecutionSummary]) -> dict[AttemptKey, float]:
    """The advantage of every execution that is trained; those that are left out are absent."""
    groups: dict[tuple[str, str], dict[AttemptKey, float]] = defaultdict(dict)
    for summary in summaries:
        worth = reward(summary)
        if worth is not None and left_out(summary) is None:
            key = (summary.execution_id, summary.execution_attempt)
            groups[group_of(summary)][key] = worth
    found: dict[AttemptKey, float] = {}
    for members in groups.values():
        found |= zip(members, relative(list(members.values())), strict=True)
    return found


def group_of(summary: ExecutionSummary) -> tuple[str, str]:
    """(kind, name) of whom it is compared with: its group, else its task, else itself alone."""
    if summary.group is not None:
        return "group", summary.group
    if summary.task is not None:
        return "task", summary.task
    return "execution", summary.execution_id


def relative(rewards: Sequence[float]) -> list[float]:
    """The formula above, over one group. Order of `rewards`."""
    if not all(map(math.isfinite, rewards)):
        raise ScoreError("a reward is no finite number")
    if len(rewards) < 2 or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    # In units of the largest, so that nothing overflows; exact sums, so that their order changes no bit.
    unit = max(map(abs, rewards))
    scaled = [each / unit for each in rewards]
    mean = math.fsum(scaled) / len(scaled)
    variance = math.fsum((each - mean) ** 2 for each in scaled) / (len(scaled) - 1)
    return [(each - mean) / (math.sqrt(variance) + EPSILON / unit) for each in scaled]
