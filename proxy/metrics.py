"""Counters of one worker, and how those of several become one page for Prometheus.

Labels are bounded: outcomes, wires, backends; never an execution or a call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Any

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.attempt import Attempt

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

    def snapshot(self) -> dict[str, Any]:
        """Everything as JSON-ready values, to be summed over workers."""
        return {
            "calls": [[*key, count] for key, count in self.calls.items()],
            "flags": dict(self.flags),
            "retries": self.retries,
            "holding": self.holding,
            "in_flight": self.in_flight,
            "memory": self.memory,
            "histograms": {
                name: {"counts": histogram.counts, "sum": histogram.sum}
                for name, histogram in (
                    ("duration", self.duration),
                    ("first_byte", self.first_byte),
                    ("overhead", self.overhead),
                )
            },
        }
