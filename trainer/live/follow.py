"""What the other processes of a live run do, while the main one runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gyre.trainer.live.settings import RunSettings
from gyre.trainer.live.setup import set_up
from gyre.trainer.update.folder import Observer
from gyre.trainer.update.ranks import Ranks


def follow(
    settings: RunSettings,
    root: Path,
    *,
    ranks: Ranks,
    resume: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    at: Observer = lambda _: None,
) -> bool:
    """Train along, until the main process ends; whether it ended in order. `stop` stops all of them.

    Raises:
        GyreError: as `run` of the loop; or another process has ended.
    """
    with set_up(settings, root, ranks=ranks, resume=resume, tell=tell, stop=stop, at=at) as trainer:
        return trainer.team.follow()
