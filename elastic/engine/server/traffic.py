"""What the server counts, and the page at `/metrics`; docs/metrics.md says what each number means."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gyre.elastic.engine.limits import EngineStats
from gyre.proxy.metrics import BUCKETS, Histogram

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(slots=True)
class Traffic:
    """Of the event loop alone."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By wire and finish reason."""
    refusals: Counter[int] = field(default_factory=Counter)
    """By status."""
    left: int = 0
    spliced: int = 0
    first_token: Histogram = field(default_factory=Histogram)
    duration: Histogram = field(default_factory=Histogram)

    def answered(self, wire: str, reason: str, arrived: float, begun: float | None) -> None:
        """`arrived` and `begun` are of `time.perf_counter`."""
        self.answers[wire, reason] += 1
        self.duration.observe(time.perf_counter() - arrived)
        if begun is not None:
            self.first_token.observe(max(begun - arrived, 0.0))


def page(traffic: Traffic, stats: EngineStats) -> bytes:
    """All families in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(traffic, stats))
    return generate_latest(registry)


class _Once(Collector):
    """Numbers that are there already, in the shape prometheus_client asks for."""

    def __init__(self, traffic: Traffic, stats: EngineStats) -> None:
        self._traffic, self._stats = traffic, stats

    def collect(self) -> Iterator[Metric]:
        yield from _of_traffic(self._traffic)
        yield from _of_engine(self._stats)


def _of_traffic(traffic: Traffic) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "gyre_engine_answers", "Choices that ended", labels=["wire", "finish_reason"]
    )
    for (wire, reason), count in traffic.answers.items():
        answers.add_metric([wire, reason], count)
    refusals = CounterMetricFamily("gyre_engine_refusals", "Requests that were refused", labels=["status"])
    for status, count in traffic.refusals.items():
        refusals.add_metric([str(status)], count)
    yield from (answers, refusals)
    yield CounterMetricFamily("gyre_engine_clients_left", "Clients that left before the end", traffic.left)
    yield CounterMetricFamily(
        "gyre_engine_spliced_tokens", "Prompt tokens remembered as ids", traffic.spliced
    )
    yield _histogram(
        "gyre_engine_time_to_first_token_seconds", "Arrival to the first token", traffic.first_token
    )
    yield _histogram("gyre_engine_request_duration_seconds", "Arrival to the end", traffic.duration)


def _of_engine(stats: EngineStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("gyre_engine_running", "Sequences that are computed now", stats.running)
    yield GaugeMetricFamily("gyre_engine_waiting", "Requests that wait for a slot", stats.waiting)
    yield GaugeMetricFamily("gyre_engine_kv_bytes", "Memory of keys and values in use", stats.kv_bytes)
    yield GaugeMetricFamily("gyre_engine_kv_limit_bytes", "Memory that they may use", stats.kv_limit_bytes)
    yield GaugeMetricFamily("gyre_engine_kept_conversations", "Prefixes kept for reuse", stats.kept)
    yield CounterMetricFamily("gyre_engine_steps", "Forward passes", stats.steps)
    yield CounterMetricFamily("gyre_engine_computed_tokens", "Tokens computed", stats.computed_tokens)
    yield CounterMetricFamily("gyre_engine_prompt_tokens", "Tokens of prompts", stats.prompt_tokens)
    yield CounterMetricFamily(
        "gyre_engine_cached_tokens", "Of these, found in the cache", stats.cached_tokens
    )
    yield CounterMetricFamily("gyre_engine_generated_tokens", "Sampled tokens", stats.generated_tokens)
    yield CounterMetricFamily("gyre_engine_preemptions", "Sequences that gave up memory", stats.preemptions)
    yield CounterMetricFamily("gyre_engine_failures", "Requests that the engine failed", stats.failures)
    yield CounterMetricFamily("gyre_engine_publications", "Versions of weights taken", stats.publications)


def _histogram(name: str, text: str, numbers: Histogram) -> Metric:
    bounds = [*map(str, BUCKETS), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(numbers.counts)), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=numbers.sum)
