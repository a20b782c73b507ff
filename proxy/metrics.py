"""Counters of one worker, and how those of several become one.

Labels are bounded: outcomes, wires, backends; never an execution or a call. `gyre.proxy.control.prometheus`
makes the page of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.record.attempt import Attempt

BUCKETS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds in seconds; model calls last from milliseconds to half an hour."""


class Histogram:
    """Seconds in fixed buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(list(self.counts), self.sum)


class Metrics:
    """Plain numbers, cheap to add to on the path of a call."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        """(wire, outcome, capture quality) -> finished attempts."""
        self.flags: defaultdict[str, int] = defaultdict(int)
        """Capture flag -> rows; everything that degrades a record is counted."""
        self.retries = 0
        self.holding = 0
        self.in_flight = 0
        self.memory = 0
        """Bytes of bodies and answers held now."""
        self.duration = Histogram()
        self.first_byte = Histogram()
        self.overhead = Histogram()
        """Time that the proxy itself adds: request to dispatch, holds left out."""

    def count(self, attempt: Attempt, rows: list[CallRecord]) -> None:
        """A finished attempt and its rows."""
        for row in rows:
            self.calls[row.wire, row.outcome, row.capture_quality] += 1
            for flag in row.capture_flags:
                self.flags[flag] += 1
        ended = rows[0].ended_ns
        self.duration.observe((ended - attempt.started_ns) / 1e9)
        if attempt.first_byte_ns is not None:
            self.first_byte.observe((attempt.first_byte_ns - attempt.started_ns) / 1e9)

    def snapshot(self) -> MetricsSnapshot:
        """The numbers as they are now."""
        return MetricsSnapshot(
            calls=[(*key, count) for key, count in self.calls.items()],
            flags=dict(self.flags),
            retries=self.retries,
            holding=self.holding,
            in_flight=self.in_flight,
            memory=self.memory,
            duration=self.duration.snapshot(),
            first_byte=self.first_byte.snapshot(),
            overhead=self.overhead.snapshot(),
        )


@dataclass(slots=True)
class HistogramSnapshot:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """One per bucket and one for what is beyond the last; not cumulative."""
    sum: float = 0.0


@dataclass(slots=True)
class MetricsSnapshot:
    """The numbers of `Metrics`, of one worker or summed over several."""

    calls: list[tuple[str, str, str, int]] = field(default_factory=list)
    """(wire, outcome, capture quality, attempts)"""
    flags: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    holding: int = 0
    in_flight: int = 0
    memory: int = 0
    duration: HistogramSnapshot = field(default_factory=HistogramSnapshot)
    first_byte: HistogramSnapshot = field(default_factory=HistogramSnapshot)
    overhead: HistogramSnapshot = field(default_factory=HistogramSnapshot)


def sum_metrics(parts: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
    """Every number added up."""
    parts = list(parts)
    calls: Counter[tuple[str, str, str]] = Counter()
    flags: Counter[str] = Counter()
    for part in parts:
        flags.update(part.flags)
        for wire, outcome, quality, count in part.calls:
            calls[wire, outcome, quality] += count
    return MetricsSnapshot(
        calls=[(*key, count) for key, count in sorted(calls.items())],
        flags=dict(sorted(flags.items())),
        retries=sum(part.retries for part in parts),
        holding=sum(part.holding for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        memory=sum(part.memory for part in parts),
        duration=_sum_histograms(part.duration for part in parts),
        first_byte=_sum_histograms(part.first_byte for part in parts),
        overhead=_sum_histograms(part.overhead for part in parts),
    )


def _sum_histograms(parts: Iterable[HistogramSnapshot]) -> HistogramSnapshot:
    total = HistogramSnapshot()
    for part in parts:
        total.counts = [a + b for a, b in zip(total.counts, part.counts, strict=True)]
        total.sum += part.sum
    return total
