"""Reports and places of a live run, as its loop would tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import Board
from gyre.trainer.live.reports import BatchReport, Evaluated, Publication, Trained
from gyre.trainer.live.status import Phase, Status

START = 1000.0
"""When a run began, in Unix seconds."""
SECONDS = {"wait": 6.0, "tree": 0.5, "train": 3.0, "publish": 0.5}


def trained(
    key: str = "g000000",
    *,
    scores: Sequence[float] = (1.0, 0.0, 1.0),
    outcomes: Mapping[str, int] | None = None,
    left_out: Mapping[str, int] | None = None,
    staleness: int = 0,
) -> Trained:
    return Trained(
        key=key,
        task="write-apple",
        burst=2,
        staleness=staleness,
        update_staleness=4 * staleness,
        scores=scores,
        outcomes=outcomes or {"completed": 3, "timed_out": 1},
        left_out={"no_score": 1} if left_out is None else left_out,
        sampled=50,
        kept=40,
        seconds=5.0,
        seconds_scoring=1.5,
        seconds_tree=0.25,
    )


def report(
    batch: int = 0,
    *,
    groups: Sequence[Trained] | None = None,
    seconds: Mapping[str, float] | None = None,
    burst: int = 3,
    tokens: tuple[int, int] = (60, 100),
) -> BatchReport:
    """`tokens`: of each group, as computed and path by path."""
    two = [trained("g000000"), trained("g000001", scores=(0.0, 0.0, 0.0), staleness=1)]
    groups = two if groups is None else groups
    return BatchReport(
        batch=batch,
        burst=burst,
        version="3",
        groups=groups,
        updates=2,
        seconds=SECONDS if seconds is None else seconds,
        tokens_tree=tokens[0] * len(groups),
        tokens_flat=tokens[1] * len(groups),
    )


def evaluated(
    update: int = 4, *, pass_rate: float | None = 0.75, temperature: float = 1.0, version: str = "2"
) -> Evaluated:
    return Evaluated(
        version=version,
        update=update,
        temperature=temperature,
        episodes=64,
        pass_rate=pass_rate,
        mean_score=pass_rate,
        outcomes={"completed": 60, "timed_out": 4},
        seconds=12.5,
        completed=60 / 64,
    )


def publication(update: int = 4, version: str = "2") -> Publication:
    return Publication(version=version, update=update, seconds=0.5, held=3)


def status(run: Path = Path("runs/tiny")) -> Status:
    """In the middle of the third batch."""
    told = Board(run, batches=8, clock=lambda: START)
    told.evaluation(evaluated(0, pass_rate=0.25, version="0"))
    told.evaluation(evaluated(2, pass_rate=0.9, version="1"))
    told.evaluation(evaluated(4, pass_rate=0.75, version="2"))
    told.evaluation(evaluated(4, pass_rate=0.95, version="2", temperature=0.0))
    told.batch(report(0, groups=[trained(scores=(0.0, 0.0, 1.0, 0.0))]))
    told.batch(report(1))
    told.publication(publication(4, "2"))
    told.sampled(0)
    told.restarts("engine", 2)
    told.enter(Phase.TRAINING, batch=2)
    counts = Counts(running=7, waiting=1200, done=32, timed_out=3)
    return told.status(counts, groups_waiting=3, groups_ready=1)
