"""The page at `/metrics`; docs/metrics.md says what each number means and is tested against this."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gyre.proxy.metrics import BUCKETS, HistogramSnapshot
from gyre.proxy.status import BackendStatus, Status

CONTENT_TYPE = CONTENT_TYPE_LATEST


def page(status: Status) -> bytes:
    """All families in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(status))
    return generate_latest(registry)


def families(status: Status) -> Iterator[Metric]:
    metrics, log = status.metrics, status.log
    yield _calls(status)
    yield _histogram("gyre_proxy_request_duration_seconds", "Dispatch to end of an attempt", metrics.duration)
    yield _histogram(
        "gyre_proxy_time_to_first_byte_seconds", "Dispatch to the answer's first byte", metrics.first_byte
    )
    yield _histogram(
        "gyre_proxy_overhead_seconds", "What the proxy adds before dispatch, holds left out", metrics.overhead
    )
    yield GaugeMetricFamily("gyre_proxy_inflight_requests", "Requests open now", metrics.in_flight)
    yield GaugeMetricFamily(
        "gyre_proxy_holding_requests", "Requests that wait for a backend now", metrics.holding
    )
    yield GaugeMetricFamily(
        "gyre_proxy_memory_bytes", "Bodies and answers held in memory now", metrics.memory
    )
    yield CounterMetricFamily("gyre_proxy_retries", "Attempts after a call's first", metrics.retries)
    yield _by_flag(status)
    yield CounterMetricFamily("gyre_record_rows", "Rows written to the log", log.rows)
    yield CounterMetricFamily("gyre_record_dropped", "Rows that could not be written", log.unrecorded)
    yield CounterMetricFamily("gyre_record_bytes", "Bytes written to the journal", log.bytes)
    yield from _backends(list(status.backends.values()))
    yield GaugeMetricFamily("gyre_workers", "Worker processes that run now", status.workers)


class _Once(Collector):
    """Numbers that are there already, in the shape prometheus_client asks for."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return families(self._status)


def _calls(status: Status) -> Metric:
    family = CounterMetricFamily(
        "gyre_proxy_calls", "Finished attempts, a choice each", labels=["wire", "outcome", "quality"]
    )
    for wire, outcome, quality, count in status.metrics.calls:
        family.add_metric([wire, outcome, quality], count)
    return family


def _by_flag(status: Status) -> Metric:
    family = CounterMetricFamily("gyre_proxy_capture_flags", "Rows with this capture flag", labels=["flag"])
    for flag, count in status.metrics.flags.items():
        family.add_metric([flag], count)
    return family


def _backends(backends: list[BackendStatus]) -> Iterator[Metric]:
    ready = GaugeMetricFamily("gyre_backend_ready", "1 when it takes new calls", labels=["backend"])
    open_calls = GaugeMetricFamily("gyre_backend_open_calls", "Attempts open now", labels=["backend"])
    failures = CounterMetricFamily("gyre_backend_failures", "Attempts that it failed", labels=["backend"])
    for backend in backends:
        ready.add_metric([backend.name], backend.ready and not backend.draining)
        open_calls.add_metric([backend.name], backend.open)
        failures.add_metric([backend.name], backend.failures)
    yield from (ready, open_calls, failures)


def _histogram(name: str, text: str, numbers: HistogramSnapshot) -> Metric:
    bounds = [*map(str, BUCKETS), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(numbers.counts)), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=numbers.sum)
