"""Counters, their sums over workers, and the page that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gyre.proxy.control.prometheus import page
from gyre.proxy.metrics import BUCKETS, Histogram, Metrics, sum_metrics
from gyre.proxy.status import BackendStatus, LogStatus, Status

DOCS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def status(metrics: Metrics) -> Status:
    backends = [
        BackendStatus(name="b1", url="http://b1", profile="auto", ready=True, open=2, failures=3),
        BackendStatus(name="b2", url="http://b2", profile="auto", ready=True, draining=True),
    ]
    return Status(
        workers=2,
        backends={backend.name: backend for backend in backends},
        log=LogStatus(rows=10, unrecorded=1, bytes=1234),
        metrics=metrics.snapshot(),
    )


def samples(shown: bytes) -> dict[tuple[str, ...], float]:
    """(name, label values) -> number."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(shown.decode())
        for sample in family.samples
    }


def filled() -> Metrics:
    metrics = Metrics()
    metrics.calls["chat", "ok", "exact"] = 4
    metrics.flags["late"] = 1
    metrics.retries, metrics.holding, metrics.in_flight, metrics.memory = 5, 6, 7, 8
    metrics.duration.observe(0.05)
    metrics.duration.observe(3600)
    return metrics


def test_a_histogram_counts_into_the_bucket_whose_bound_is_not_below() -> None:
    histogram = Histogram()
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, BUCKETS[-1], BUCKETS[-1] + 1):
        histogram.observe(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-2:] == [1, 1]
    assert sum(histogram.counts) == 5


def test_a_snapshot_does_not_change_afterwards() -> None:
    metrics = filled()
    before = metrics.snapshot()
    metrics.duration.observe(1)
    metrics.calls["chat", "ok", "exact"] += 1
    metrics.flags["late"] += 1
    assert before == filled().snapshot()


def test_numbers_of_workers_add_up() -> None:
    one, two = filled(), filled()
    two.calls["completions", "timeout", "none"] = 2
    total = sum_metrics([one.snapshot(), two.snapshot()])
    assert total.calls == [("chat", "ok", "exact", 8), ("completions", "timeout", "none", 2)]
    assert (total.flags, total.retries, total.holding, total.in_flight, total.memory) == (
        {"late": 2},
        10,
        12,
        14,
        16,
    )
    assert (sum(total.duration.counts), total.duration.sum) == (4, 7200.1)
    assert sum_metrics([]).duration.counts == [0] * (len(BUCKETS) + 1)


def test_the_page_shows_every_number() -> None:
    shown = samples(page(status(filled())))
    assert shown["gyre_proxy_calls_total", "ok", "exact", "chat"] == 4
    assert shown["gyre_proxy_capture_flags_total", "late"] == 1
    assert shown["gyre_proxy_request_duration_seconds_bucket", "0.1"] == 1
    assert shown["gyre_proxy_request_duration_seconds_bucket", "1800.0"] == 1
    assert shown["gyre_proxy_request_duration_seconds_bucket", "+Inf"] == 2
    assert shown["gyre_proxy_request_duration_seconds_count",] == 2
    assert shown["gyre_proxy_request_duration_seconds_sum",] == 3600.05
    assert shown["gyre_record_dropped_total",] == 1
    assert shown["gyre_record_rows_total",] == 10
    assert (shown["gyre_backend_ready", "b1"], shown["gyre_backend_ready", "b2"]) == (1, 0)
    assert (shown["gyre_backend_open_calls", "b1"], shown["gyre_backend_failures_total", "b1"]) == (2, 3)
    assert shown["gyre_workers",] == 2


def test_every_metric_is_documented_with_its_type_and_nothing_else() -> None:
    text = page(status(filled())).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    documented = re.findall(r"^\| `(gyre_(?!engine_)\w+)` \| (\w+) \|", DOCS, re.MULTILINE)
    assert dict(documented) == types


def test_every_label_is_documented() -> None:
    for family in text_string_to_metric_families(page(status(filled())).decode()):
        for sample in family.samples:
            for label in sample.labels.keys() - {"le"}:
                assert re.search(rf"`{family.name}(_total)?` \|.*`{label}`", DOCS), (family.name, label)
