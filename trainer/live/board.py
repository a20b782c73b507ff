"""Where a live run stands, put together of what its loop tells."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gyre.proxy.process import born
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.numbers import batch_numbers, evaluations, phases
from gyre.trainer.live.reports import BatchReport, Evaluated, Publication
from gyre.trainer.live.status import Phase, Point, Staleness, Status

HISTORY = 48
"""Batches."""
WARNINGS = 5
WINDOW_S = 60.0


class Board:
    """Told by the loop, and warned by whoever finds something; any thread may ask for `status`."""

    def __init__(
        self,
        run: Path,
        *,
        batches: int,
        warn: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`warn` hears warnings too."""
        self._warn = warn
        self._clock = clock
        self._rate = Rate(clock())
        self._lock = threading.RLock()
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

    def enter(
        self,
        phase: Phase,
        *,
        batch: int | None = None,
        burst: int | None = None,
        version: str | None = None,
    ) -> None:
        """None: as before."""
        now = self._now
        self._set(
            phase=phase,
            phase_at=now.phase_at if phase is now.phase else self._clock(),
            batch=now.batch if batch is None else batch,
            burst=now.burst if burst is None else burst,
            version=now.version if version is None else version,
        )

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
        with self._lock:
            self._set(warnings=[*self._now.warnings, text][-WARNINGS:])
        self._warn(text)

    def restarts(self, service: str, times: int) -> None:
        """How often one had died so far and was started again: `engine`, `proxy`."""
        with self._lock:
            self._set(restarts={**self._now.restarts, service: times})

    def sampled(self, tokens: int) -> None:
        """By this process, so far."""
        with self._lock:
            self._rate.at(self._clock(), tokens)

    def failed(self, message: str, hint: str = "") -> None:
        self.enter(Phase.FAILED)
        self._set(error=message, hint=hint)

    def go_on_with(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """What `metrics.jsonl` has of the run before it was interrupted; in place of what was told before."""
        self._set(updates=0, batches_done=0, history=(), seconds_in_all={})
        for line in lines:
            self._set(updates=line["update"])
            if line.get("kind") == "batch":
                self._batch(line["batch"], line["burst"], line)
        self._set(evaluations=notable(evaluations(lines)))

    def status(self, counts: Counts, *, groups_waiting: int = 0, groups_ready: int = 0) -> Status:
        with self._lock:
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
        with self._lock:
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
    """How fast a count grows that begins at 0 and may grow by leaps, as groups come to their end."""

    began: float
    window_s: float = WINDOW_S
    _grown: deque[tuple[float, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._grown = deque([(self.began, 0)])

    def at(self, now: float, count: int) -> None:
        if count == self._grown[-1][1]:
            return
        self._grown.append((now, count))
        while len(self._grown) > 2 and self._grown[1][0] <= now - self.window_s:
            self._grown.popleft()

    def per_s(self, now: float) -> float | None:
        """Over the window, or the last leap where that took longer; None before the first one."""
        (first_at, first), (last_at, last) = self._grown[0], self._grown[-1]
        took = last_at - first_at
        if took <= 0:
            return None
        overdue = now - last_at > max(took, self.window_s)
        return (last - first) / (now - first_at if overdue else took)
