"""The learning rate of each update."""

from __future__ import annotations

import math

from gyre.trainer.settings import OptimizerSettings, Schedule


def lr_at(update: int, settings: OptimizerSettings, total: int) -> float:
    """Of update 0, 1, ... `total` - 1.

    It rises linearly over `warmup_updates`, the first of which has 1/warmup of it and none has 0. After
    them `linear` and `cosine` fall, so that an update after the last would have 0.
    """
    warm = settings.warmup_updates
    if update < warm:
        return settings.lr * (update + 1) / warm
    if settings.schedule is Schedule.CONSTANT:
        return settings.lr
    done = min(1.0, (update - warm) / max(1, total - warm))
    if settings.schedule is Schedule.LINEAR:
        return settings.lr * (1 - done)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
