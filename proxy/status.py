"""What the workers know, as values that travel between processes, and how they become one.

`merge` gives the same kind of value that it takes, so the last word of a worker that died can be
kept by merging it into those before it. All counters only grow; what is true of the moment (open
calls, readiness) is dropped from a dead worker's last word by `retired`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gyre.proxy.allowance import Allowance
from gyre.proxy.executions import Executions, ExecutionState, over
from gyre.proxy.metrics import MetricsSnapshot, sum_metrics
from gyre.proxy.router import BackendState
from gyre.proxy.settings import Pin
from gyre.proxy.tally import Tally, merged

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class BackendStatus:
    """One backend; ready when it is ready in any worker."""

    name: str
    url: str
    profile: str
    engine: str | None = None
    cell: str | None = None
    ready: bool = False
    draining: bool = False
    problem: str | None = None
    version: str | None = None
    open: int = 0
    calls: int = 0
    failures: int = 0


@dataclass(slots=True, kw_only=True)
class ExecutionStatus:
    """One execution; `attempt` is the one that runs, or the one that ended last."""

    name: str
    put: bool = False
    task: str | None = None
    group: str | None = None
    evaluation: bool | None = None
    pin: Pin | None = None
    restore_arguments: bool | None = None
    limits: Allowance | None = None
    tally: Tally = field(default_factory=Tally)
    held_s: float = 0.0
    ends: int = 0
    begun: int = 0
    calls: int = 0
    open: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_ns: int
    last_ns: int

    @property
    def ended(self) -> bool:
        return over(self.ends, self.begun)

    @property
    def attempt(self) -> int:
        return self.ends - self.ended


@dataclass(slots=True, kw_only=True)
class LogStatus:
    rows: int = 0
    unrecorded: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Status:
    """One worker, or all of them. `executions` holds those that were asked for."""

    workers: int = 0
    stopping: bool = False
    backends: dict[str, BackendStatus] = field(default_factory=dict)
    executions: dict[str, ExecutionStatus] = field(default_factory=dict)
    log: LogStatus = field(default_factory=LogStatus)
    metrics: MetricsSnapshot = field(default_factory=MetricsSnapshot)

    @property
    def serves(self) -> bool:
        return any(b.ready and not b.draining for b in self.backends.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionQuery:
    """Which executions shall be in an answer: the `limit` latest whose name begins with `prefix`."""

    name: str | None = None
    """Just this one."""
    prefix: str = ""
    limit: int = 0


def merge(parts: Iterable[Status]) -> Status:
    """Several workers as one. Where they say different things (for a moment), the first one counts."""
    parts = list(parts)
    return Status(
        workers=sum(part.workers for part in parts),
        stopping=any(part.stopping for part in parts),
        backends={
            name: _merge_backends([part.backends[name] for part in parts if name in part.backends])
            for name in dict.fromkeys(name for part in parts for name in part.backends)
        },
        executions={
            name: merge_executions([part.executions[name] for part in parts if name in part.executions])
            for name in dict.fromkeys(name for part in parts for name in part.executions)
        },
        log=_merge_logs([part.log for part in parts]),
        metrics=sum_metrics(part.metrics for part in parts),
    )


def merge_executions(parts: Sequence[ExecutionStatus]) -> ExecutionStatus:
    """One execution as several workers saw it; what was put reached all of them, the dead ones aside."""
    latest = max(parts, key=lambda part: part.last_ns)
    return ExecutionStatus(
        name=latest.name,
        put=any(part.put for part in parts),
        task=_first(part.task for part in parts),
        group=_first(part.group for part in parts),
        evaluation=_first(part.evaluation for part in parts),
        pin=_first(part.pin for part in parts),
        restore_arguments=_first(part.restore_arguments for part in parts),
        limits=_first(part.limits for part in parts),
        tally=merged([part.tally for part in parts]),
        # Workers hold at the same times, for want of the same engines.
        held_s=max(part.held_s for part in parts),
        ends=max(part.ends for part in parts),
        begun=max(part.begun for part in parts),
        calls=sum(part.calls for part in parts),
        open=sum(part.open for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        first_ns=min(part.first_ns for part in parts),
        last_ns=latest.last_ns,
    )


def retired(status: Status) -> Status:
    """What remains true of a worker that is gone: its counters."""
    metrics = replace(status.metrics, holding=0, in_flight=0, memory=0)
    return Status(
        backends={
            name: replace(b, ready=False, draining=False, problem=None, version=None, open=0)
            for name, b in status.backends.items()
        },
        executions={name: replace(e, open=0) for name, e in status.executions.items()},
        log=replace(status.log, problems=[]),
        metrics=metrics,
    )


def selected(parts: Sequence[dict[str, ExecutionStatus]], query: ExecutionQuery) -> list[ExecutionStatus]:
    """The executions that `query` asks for, of several workers' tables; the latest first."""
    if query.name is not None:
        names = {query.name} if any(query.name in part for part in parts) else set()
    elif query.limit:
        names = {name for part in parts for name in part if name.startswith(query.prefix)}
    else:
        return []
    merged = [merge_executions([part[name] for part in parts if name in part]) for name in names]
    merged.sort(key=lambda execution: (-execution.last_ns, execution.name))
    return merged if query.name is not None else merged[: query.limit]


def selected_here(executions: Executions, query: ExecutionQuery) -> list[ExecutionStatus]:
    """The same in a worker's own table, without looking at more of it than needed."""
    if query.name is not None:
        state = executions.known.get(query.name)
        return [execution_status(state)] if state else []
    found: list[ExecutionStatus] = []
    for state in executions.recent():
        if len(found) >= query.limit:
            break
        if state.name.startswith(query.prefix):
            found.append(execution_status(state))
    return found


def backend_status(backend: BackendState) -> BackendStatus:
    return BackendStatus(
        name=backend.name,
        url=backend.settings.url,
        profile=backend.settings.profile,
        engine=backend.engine.value if backend.engine else None,
        cell=backend.settings.cell,
        ready=backend.ready,
        draining=backend.draining,
        problem=backend.problem,
        version=backend.version,
        open=backend.open,
        calls=backend.calls,
        failures=backend.failures,
    )


def execution_status(state: ExecutionState) -> ExecutionStatus:
    return ExecutionStatus(
        name=state.name,
        put=state.put,
        task=state.task,
        group=state.group,
        evaluation=state.evaluation,
        pin=state.pin,
        restore_arguments=state.restore_arguments,
        limits=state.limits,
        tally=replace(state.tally),
        held_s=state.held.seconds,
        ends=state.ends,
        begun=state.begun,
        calls=state.calls,
        open=state.open,
        prompt_tokens=state.prompt_tokens,
        output_tokens=state.output_tokens,
        first_ns=state.first_ns,
        last_ns=state.last_ns,
    )


def _merge_backends(parts: Sequence[BackendStatus]) -> BackendStatus:
    ready = any(part.ready for part in parts)
    return replace(
        parts[0],
        engine=_first(part.engine for part in parts),
        ready=ready,
        draining=any(part.draining for part in parts),
        problem=None if ready else _first(part.problem for part in parts),
        version=_first(part.version for part in parts),
        open=sum(part.open for part in parts),
        calls=sum(part.calls for part in parts),
        failures=sum(part.failures for part in parts),
    )


def _merge_logs(parts: Sequence[LogStatus]) -> LogStatus:
    return LogStatus(
        rows=sum(part.rows for part in parts),
        unrecorded=sum(part.unrecorded for part in parts),
        bytes=sum(part.bytes for part in parts),
        problems=list(dict.fromkeys(problem for part in parts for problem in part.problems)),
    )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)
