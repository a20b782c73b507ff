"""Which tokens the next step computes. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plan_step(pending: Sequence[int], *, budget: int) -> list[int]:
    """How many tokens each running sequence gets, given how many each still has to compute.

    Whoever is generating (one token pending) gets it. Prompts share `budget`: the first to arrive is sure
    of half, so that it is not held up by those after it; the others share the rest evenly, so that a short
    prompt does not wait behind a long one.
    """
    counts = [min(tokens, 1) for tokens in pending]
    prompts = [index for index, tokens in enumerate(pending) if tokens > 1]
    if not prompts:
        return counts
    first, *others = prompts
    counts[first] = min(pending[first], -(-budget // 2))
    left = budget - counts[first]
    for rank, index in enumerate(sorted(others, key=lambda index: pending[index])):
        counts[index] = min(pending[index], left // (len(others) - rank))
        left -= counts[index]
    counts[first] += min(left, pending[first] - counts[first])
    return counts
