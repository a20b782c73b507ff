"""How what several workers know becomes one."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.proxy.executions import Executions
from gyre.proxy.metrics import Metrics
from gyre.proxy.settings import Pin
from gyre.proxy.status import (
    BackendStatus,
    ExecutionQuery,
    ExecutionStatus,
    LogStatus,
    Status,
    merge,
    merge_executions,
    retired,
    selected,
    selected_here,
)


def backend(**fields: Any) -> BackendStatus:
    return BackendStatus(**{"name": "b1", "url": "http://b1", "profile": "auto"} | fields)


def execution(name: str = "e1", **fields: Any) -> ExecutionStatus:
    return ExecutionStatus(name=name, **{"first_ns": 10, "last_ns": 20} | fields)


def worker(*parts: BackendStatus | ExecutionStatus, rows: int = 0, **fields: Any) -> Status:
    return Status(
        workers=1,
        backends={part.name: part for part in parts if isinstance(part, BackendStatus)},
        executions={part.name: part for part in parts if isinstance(part, ExecutionStatus)},
        log=LogStatus(rows=rows),
        **fields,
    )


def test_a_backend_is_ready_when_it_is_ready_in_any_worker() -> None:
    down = backend(problem="connection refused", calls=1, open=1, failures=2)
    up = backend(ready=True, engine="vllm", calls=2, open=3)
    (merged,) = merge([worker(down), worker(up)]).backends.values()
    assert (merged.ready, merged.problem, merged.engine) == (True, None, "vllm")
    assert (merged.calls, merged.open, merged.failures) == (3, 4, 2)
    assert merge([worker(down)]).backends["b1"].problem == "connection refused"


@pytest.mark.parametrize(
    ("fields", "serves"), [({"ready": True}, True), ({"ready": True, "draining": True}, False), ({}, False)]
)
def test_a_draining_backend_serves_no_more(fields: dict[str, bool], serves: bool) -> None:
    assert worker(backend(**fields)).serves is serves


def test_an_execution_is_the_sum_of_what_workers_saw_of_it() -> None:
    one = execution(calls=2, open=1, prompt_tokens=100, output_tokens=10, first_ns=5, last_ns=30, begun=1)
    two = execution(calls=1, prompt_tokens=50, output_tokens=5, last_ns=40, put=True, task="t", pin=Pin())
    merged = merge_executions([one, two])
    assert (merged.calls, merged.open, merged.prompt_tokens, merged.output_tokens) == (3, 1, 150, 15)
    assert (merged.first_ns, merged.last_ns) == (5, 40)
    assert (merged.put, merged.task, merged.pin) == (True, "t", Pin())


def test_a_call_that_only_one_worker_saw_opens_the_next_attempt_for_all() -> None:
    saw_nothing = execution(ends=1, begun=1)
    saw_a_call = execution(ends=1, begun=2)
    assert (saw_nothing.attempt, saw_nothing.ended) == (0, True)
    merged = merge_executions([saw_nothing, saw_a_call])
    assert (merged.attempt, merged.ended) == (1, False)


def test_problems_of_any_worker_are_shown_once() -> None:
    failing = Status(log=LogStatus(problems=["no space"], unrecorded=1))
    assert merge([failing, worker(), failing]).log == LogStatus(problems=["no space"], unrecorded=2)


def test_the_counters_of_a_dead_worker_stay_and_its_moment_is_over() -> None:
    metrics = Metrics()
    metrics.calls["chat", "ok", "exact"] = 7
    metrics.in_flight = metrics.holding = metrics.memory = 3
    last = worker(
        backend(ready=True, open=2, calls=9, version="1", draining=True),
        execution(calls=4, open=2, begun=2, ends=1),
        rows=8,
        metrics=metrics.snapshot(),
        stopping=True,
    )
    left = retired(last)
    assert (left.workers, left.stopping, left.serves) == (0, False, False)
    total = merge([worker(backend(version="2"), rows=1), left, retired(last)])
    assert (total.workers, total.log.rows) == (1, 17)
    assert total.metrics.calls == [("chat", "ok", "exact", 14)]
    assert (total.metrics.in_flight, total.metrics.holding, total.metrics.memory) == (0, 0, 0)
    merged = total.backends["b1"]
    assert (merged.calls, merged.open, merged.version, merged.draining) == (18, 0, "2", False)
    assert (total.executions["e1"].open, total.executions["e1"].attempt) == (0, 1)


def test_merging_in_steps_is_merging_at_once() -> None:
    parts = [
        worker(backend(calls=n, ready=n == 2), execution(calls=n, last_ns=20 + n), execution(f"e{n}"), rows=n)
        for n in range(4)
    ]
    assert merge([merge(parts[:2]), merge(parts[2:])]) == merge(parts)


def names(found: list[ExecutionStatus]) -> list[str]:
    return [status.name for status in found]


def test_executions_are_selected_by_name_or_prefix_the_latest_first() -> None:
    tables = [
        {"a-1": execution("a-1", last_ns=30), "a-2": execution("a-2", last_ns=20)},
        {"a-2": execution("a-2", last_ns=40, calls=5), "b-1": execution("b-1", last_ns=50)},
    ]
    assert names(selected(tables, ExecutionQuery(limit=10))) == ["b-1", "a-2", "a-1"]
    assert names(selected(tables, ExecutionQuery(prefix="a-", limit=1))) == ["a-2"]
    (found,) = selected(tables, ExecutionQuery(name="a-2"))
    assert (found.calls, found.last_ns) == (5, 40)
    assert selected(tables, ExecutionQuery(name="c")) == []
    assert selected(tables, ExecutionQuery()) == []


def test_a_worker_alone_selects_in_the_same_way() -> None:
    executions = Executions()
    for name in ("a-1", "a-2", "b-1", "a-1"):
        executions.begin_call(name)
    assert names(selected_here(executions, ExecutionQuery(limit=10))) == ["a-1", "b-1", "a-2"]
    assert names(selected_here(executions, ExecutionQuery(prefix="a-", limit=1))) == ["a-1"]
    assert names(selected_here(executions, ExecutionQuery(name="b-1"))) == ["b-1"]
    assert selected_here(executions, ExecutionQuery(name="c")) == []
    assert selected_here(executions, ExecutionQuery()) == []
    assert "c" not in executions.known
