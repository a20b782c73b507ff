"""A control: advantages that say nothing. A run that learns from them learns from something else. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash


def shuffled(advantages: Sequence[float], group: str, seed: int) -> list[float]:
    """The same numbers dealt out anew within the group, the same way whenever it is asked."""
    draws = np.random.PCG64(np.random.SeedSequence([seed, xxhash.xxh3_64_intdigest(group.encode())]))
    order = np.argsort(draws.random_raw(len(advantages)), kind="stable").tolist()
    return [advantages[place] for place in order]
