"""What executions are worth: scores as given, rewards, and advantages within a group. Pure.

    A_i = (r_i - mean(r)) / (std(r) + 1e-4)        over the scored executions of a group, std with n - 1

This is the group-relative advantage of GRPO (arXiv 2402.03300), which GSPO (arXiv 2507.18071) keeps;
`Advantage` has the other kinds. As in QwenGyre (arXiv 2609.33848) the group's members are executions, not
the rows they are cut into: an execution that compacts often or has many sub-agents weighs no more than
another. A group of one, and one of equal rewards, has nothing to compare: 0 in every kind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from gyre.proxy.errors import ScoreError
from gyre.proxy.executions import ExecutionOutcome
from gyre.proxy.scores import Scored
from gyre.treebuilder.summary import ExecutionSummary

EPSILON = 1e-4
"""In the denominator, so that a group that hardly differs does not get huge advantages."""
NEVER_TRAINED = (ExecutionOutcome.RUN_TIMEOUT, ExecutionOutcome.SCORER_FAILED)


class Advantage(StrEnum):
    """What an execution's reward is compared with, within its group."""

    GROUP = "group"
    """(r - mean) / (std + 1e-4), std with n - 1."""
    CENTERED = "centered"
    """r - mean: hard and easy groups are not blown up (Dr. GRPO, arXiv 2503.20783)."""
    LEAVE_ONE_OUT = "leave_one_out"
    """r - mean of the others (RLOO, arXiv 2402.14740)."""


AttemptKey = tuple[str, int]
"""(execution_id, execution_attempt)"""


Scores = Mapping[tuple[str, int | None], Scored]
"""By (execution, attempt); attempt None is the last one."""


def said_of(scores: Scores, execution_id: str, attempt: int, last: bool) -> Scored | None:
    """What they say of an attempt; what names it outweighs what is said of the last one."""
    return scores.get((execution_id, attempt)) or (scores.get((execution_id, None)) if last else None)


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


def advantages(
    summaries: Iterable[ExecutionSummary], how: Advantage = Advantage.GROUP
) -> dict[AttemptKey, float]:
    """The advantage of every execution that is trained; those that are left out are absent."""
    groups: dict[tuple[str, str], dict[AttemptKey, float]] = defaultdict(dict)
    for summary in summaries:
        worth = reward(summary)
        if worth is not None and left_out(summary) is None:
            key = (summary.execution_id, summary.execution_attempt)
            groups[group_of(summary)][key] = worth
    found: dict[AttemptKey, float] = {}
    for members in groups.values():
        found |= zip(members, relative(list(members.values()), how), strict=True)
    return found


def group_of(summary: ExecutionSummary) -> tuple[str, str]:
    """(kind, name) of whom it is compared with: its group, else its task, else itself alone."""
    if summary.group is not None:
        return "group", summary.group
    if summary.task is not None:
        return "task", summary.task
    return "execution", summary.execution_id


def group_name(summary: ExecutionSummary) -> str:
    """Of `group_of`, as one text. A task may be called like a group: only a group's name stands alone."""
    kind, name = group_of(summary)
    return name if kind == "group" else f"{kind}:{name}"


def relative(rewards: Sequence[float], how: Advantage = Advantage.GROUP) -> list[float]:
    """Advantages within one group, in the order of `rewards`; 0 where there is nothing to compare.

    Raises:
        ScoreError: a reward is no finite number.
    """
    if not all(map(math.isfinite, rewards)):
        raise ScoreError("a reward is no finite number")
    if len(rewards) < 2 or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    # In units of the largest, so that nothing overflows; exact sums, so that their order changes no bit.
    unit = max(map(abs, rewards))
    scaled = [each / unit for each in rewards]
    mean = math.fsum(scaled) / len(scaled)
    if how is Advantage.GROUP:
        variance = math.fsum((each - mean) ** 2 for each in scaled) / (len(scaled) - 1)
        return [(each - mean) / (math.sqrt(variance) + EPSILON / unit) for each in scaled]
    # r - (n mean - r) / (n - 1) = (r - mean) n / (n - 1)
    more = len(scaled) / (len(scaled) - 1) if how is Advantage.LEAVE_ONE_OUT else 1.0
    return [(each - mean) * more * unit for each in scaled]
