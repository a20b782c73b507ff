"""Which tokens the next step computes. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plan_step(pending: Sequence[int], *, budget: int) -> list[int]:
    """How many tokens each running sequence gets, given how many each still has to compute.

    Whoever is generating (one token pending) gets it; prompts share `budget` in order of arrival, so
    that a long prompt delays a running answer by one chunk only.
    """
    counts = []
    for tokens in pending:
        count = 1 if tokens == 1 else min(tokens, budget)
        budget -= 0 if tokens == 1 else count
        counts.append(count)
    return counts
