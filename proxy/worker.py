"""The state of one worker process, the commands that change it, and a snapshot of it.

Commands reach every worker in the same order (from the control API, through the supervisor when
there are several workers), so all of them agree on backends, versions and executions.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gyre.proxy.executions import Executions
from gyre.proxy.log.recorder import Recorder
from gyre.proxy.metrics import Metrics
from gyre.proxy.router import BackendState, Router
from gyre.proxy.settings import Backend, Pin, ProxySettings


class AddBackend(msgspec.Struct, frozen=True, tag="add_backend"):
    backend: Backend


class DrainBackend(msgspec.Struct, frozen=True, tag="drain_backend"):
    name: str
    draining: bool


class RemoveBackend(msgspec.Struct, frozen=True, tag="remove_backend"):
    name: str


class SetVersion(msgspec.Struct, frozen=True, tag="set_version"):
    """Backend `name` (all of them when None) serves policy `version` from now on."""

    name: str | None
    version: str


class PutExecution(msgspec.Struct, frozen=True, tag="put_execution"):
    name: str
    task: str | None = None
    group: str | None = None
    evaluation: bool | None = None
    pin: Pin | None = None


class EndExecution(msgspec.Struct, frozen=True, tag="end_execution"):
    name: str


Command = AddBackend | DrainBackend | RemoveBackend | SetVersion | PutExecution | EndExecution


class Worker:
    """Everything a worker holds. `on_backend` is told of new backends, so that they are probed."""

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.name = secrets.token_hex(4)
        self.router = Router(settings.backends)
        self.executions = Executions()
        self.metrics = Metrics()
        self.recorder = Recorder(Path(settings.logs), self.name, settings.log)
        self.available = asyncio.Event()
        """Set while some backend serves; held calls wait for it."""
        self.stopping = False
        self.on_backend: Callable[[BackendState], None] = lambda _: None

    def apply(self, command: Command) -> None:
        """Carry out a command; a name it does not know changes nothing."""
        match command:
            case AddBackend(backend):
                self.on_backend(self.router.add(backend))
            case DrainBackend(name, draining) if name in self.router.backends:
                self.router.backends[name].draining = draining
            case RemoveBackend(name) if name in self.router.backends:
                self.router.remove(name)
            case SetVersion(name, version):
                for backend in self.router.backends.values():
                    if name in (None, backend.name):
                        backend.version = version
            case PutExecution(name, task, group, evaluation, pin):
                state = self.executions.get(name)
                state.task = task if task is not None else state.task
                state.group = group if group is not None else state.group
                state.evaluation = evaluation if evaluation is not None else state.evaluation
                state.pin = pin if pin is not None else state.pin
            case EndExecution(name):
                self.executions.end(name)
            case _:
                pass
        self.refresh()

    def refresh(self) -> None:
        """Wake or stop held calls after anything about backends changed."""
        if self.router.any_ready():
            self.available.set()
        else:
            self.available.clear()

    def snapshot(self) -> dict[str, Any]:
        """What this worker knows, JSON-ready; `gyre.proxy.control` adds up those of all workers."""
        recorder = self.recorder
        return {
            "worker": self.name,
            "backends": {b.name: _backend(b) for b in self.router.backends.values()},
            "executions": {e.name: _execution(e) for e in self.executions.known.values()},
            "log": {
                "rows": recorder.rows,
                "unrecorded": recorder.unrecorded,
                "bytes": recorder.bytes,
                "problem": recorder.problem,
            },
            "metrics": self.metrics.snapshot(),
            "stopping": self.stopping,
        }


def _backend(backend: BackendState) -> dict[str, Any]:
    return {
        "url": backend.settings.url,
        "profile": backend.settings.profile,
        "engine": backend.engine.value if backend.engine else None,
        "cell": backend.settings.cell,
        "ready": backend.ready,
        "draining": backend.draining,
        "problem": backend.problem,
        "version": backend.version,
        "open": backend.open,
        "calls": backend.calls,
        "failures": backend.failures,
    }


def _execution(execution: Any) -> dict[str, Any]:
    return {
        "task": execution.task,
        "group": execution.group,
        "evaluation": execution.evaluation,
        "attempt": execution.ends - execution.over,
        "ended": execution.over,
        "calls": execution.calls,
        "open": execution.open,
        "prompt_tokens": execution.prompt_tokens,
        "output_tokens": execution.output_tokens,
        "first_ns": execution.first_ns,
        "last_ns": execution.last_ns,
    }
