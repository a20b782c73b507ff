"""How a live run is watched and stopped, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gyre.trainer.live.reports import BatchReport, Evaluated, Publication
from gyre.trainer.live.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWatch:
    """How a live run is watched and stopped."""

    tell: Callable[[str], None] = lambda _: None
    """Remarks for people."""
    status: Callable[[Status], None] = lambda _: None
    batch: Callable[[BatchReport, int], None] = lambda report, batches: None
    publication: Callable[[Publication], None] = lambda _: None
    evaluation: Callable[[Evaluated], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    at: Callable[[str], None] = lambda _: None
    """Told where the work stands; tests kill the process there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOutcome:
    batches: int
    updates: int
    interrupted: bool
    checkpoint: Path | None
    """The newest."""
    final: Path | None
    """The model at the end; None: the run has not come to it."""
    evaluations: list[Evaluated]
