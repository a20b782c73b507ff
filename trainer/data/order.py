"""In which order groups are trained. Pure, and the same on any machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gyre.trainer.data.read import Group
from gyre.trainer.settings import TrainSettings


def batches(groups: Sequence[Group], settings: TrainSettings, epoch: int) -> list[list[Group]]:
    """The batches of an epoch, from 0: all groups, shuffled; the last batch may be smaller.

    Raw draws are sorted: unlike what is made of them, those stay the same over versions of NumPy.
    """
    draws = np.random.PCG64(np.random.SeedSequence([settings.seed, epoch])).random_raw(len(groups))
    mixed = [groups[index] for index in np.argsort(draws, kind="stable").tolist()]
    size = settings.groups_per_batch
    return [mixed[start : start + size] for start in range(0, len(mixed), size)]
