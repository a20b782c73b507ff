"""Where a live run stands, put together of what its loop tells."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.numbers import batch_numbers, phases
from gyre.trainer.live.reports import BatchReport, Evaluated, Publication
from gyre.trainer.live.status import Phase, Point, Staleness, Status, born

HISTORY = 48
"""Batches."""
WARNINGS = 5
WINDOW_S = 60.0


class Board:
    """Told by the loop; `status` may be asked at any time."""

    def __init__(self, run: Path, *, batches: int, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rate = Rate()
        self._now = Status(
            run=str(run),
            pid=os.getpid(),
            host=os.uname().nodename,
            born=born(os.getpid()),
            started_at=clock(),
            updated_at=clock(),
            phase_at=clock(),
            batches=batches,
        )

    def enter(self, phase: Phase, *, burst: int | None = None) -> None:
        if phase is not self._now.phase:
            self._set(phase=phase, phase_at=self._clock())
        if burst is not None:
            self._set(burst=burst)

    def update(self, number: int) -> None:
        """An update is done; they are numbered from 1."""
        self._set(updates=number)

    def batch(self, report: BatchReport) -> None:
        self._batch(report.batch, report.burst, batch_numbers(report))

    def publication(self, publication: Publication) -> None:
        self._set(version=publication.version, updates=publication.update)

    def evaluation(self, evaluated: Evaluated) -> None:
        self._set(evaluations=notable([*self._now.evaluations, evaluated]))

    def warn(self, text: str) -> None:
        self._set(warnings=[*self._now.warnings, text][-WARNINGS:])

    def restarted(self, service: str) -> None:
        """One that had died: `engine`, `proxy`."""
        before = self._now.restarts
        self._set(restarts={**before, service: before.get(service, 0) + 1})

    def sampled(self, tokens: int) -> None:
        """By this process, so far; fewer than before where the count began anew."""
        self._rate.at(self._clock(), tokens)

    def failed(self, message: str, hint: str = "") -> None:
        self.enter(Phase.FAILED)
        self._set(error=message, hint=hint)

    def go_on_with(self, lines: Iterable[Mapping[str, Any]], evaluations: Sequence[Evaluated]) -> None:
        """What `metrics.jsonl` has of the run before it was interrupted."""
        for line in lines:
            self._set(updates=line["update"])
            if line.get("kind") == "batch":
                self._batch(line["batch"], line["burst"], line)
        self._set(evaluations=notable(evaluations))

    def status(self, counts: Counts, *, groups_waiting: int = 0, groups_ready: int = 0) -> Status:
        self._set(
            updated_at=self._clock(),
            executions=counts,
            groups_waiting=groups_waiting,
            groups_ready=groups_ready,
            tokens_per_s=self._rate.per_s(self._clock()),
        )
        return self._now

    def _batch(self, batch: int, burst: int, numbers: Mapping[str, Any]) -> None:
        spent, in_all = phases(numbers), self._now.seconds_in_all
        point = Point(batch=batch, pass_rate=numbers.get("pass_rate"), mean_score=numbers.get("mean_score"))
        self._set(
            batches_done=batch + 1,
            burst=burst,
            history=[*self._now.history, point][-HISTORY:],
            staleness=_staleness(numbers),
            kept_share=numbers.get("kept_share"),
            tree_savings=numbers.get("tree_savings"),
            groups_varied=numbers["groups_varied"],
            seconds=spent,
            seconds_in_all={**in_all, **{name: in_all.get(name, 0.0) + spent[name] for name in spent}},
        )

    def _set(self, **changes: Any) -> None:
        self._now = msgspec.structs.replace(self._now, **changes)


def _staleness(numbers: Mapping[str, Any]) -> Staleness | None:
    if "staleness/mean" not in numbers:
        return None
    return Staleness(
        mean=numbers["staleness/mean"],
        max=numbers["staleness/max"],
        updates_mean=numbers["staleness/updates_mean"],
        updates_max=numbers["staleness/updates_max"],
    )


def notable(evaluations: Sequence[Evaluated]) -> list[Evaluated]:
    """Of each temperature the first, the best and the last, in their order."""
    found = set()
    for temperature in {one.temperature for one in evaluations}:
        places = [place for place, one in enumerate(evaluations) if one.temperature == temperature]
        best = max(places, key=lambda place: evaluations[place].pass_rate or 0.0)
        found |= {places[0], best, places[-1]}
    return [evaluations[place] for place in sorted(found)]


@dataclass(slots=True)
class Rate:
    """How fast a count grows."""

    window_s: float = WINDOW_S
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def at(self, now: float, count: int) -> None:
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.window_s:
            self._seen.popleft()

    def per_s(self, now: float) -> float | None:
        """Over the window, as far as it is known."""
        if not self._seen:
            return None
        (begin, first), (_, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - begin) if now > begin else None
