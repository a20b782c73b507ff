"""The state of one worker process, how commands change it, and a snapshot of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from gyre.proxy.commands import (
    AddBackend,
    Command,
    DrainBackend,
    EndExecution,
    ForgetLog,
    PutExecution,
    RemoveBackend,
    SetVersion,
    SpendExecution,
    StartExecution,
)
from gyre.proxy.executions import Executions
from gyre.proxy.log.record.journal import Opener, open_new
from gyre.proxy.log.record.recorder import Recorder
from gyre.proxy.metrics import Metrics
from gyre.proxy.router import BackendState, Router
from gyre.proxy.settings import ProxySettings
from gyre.proxy.status import ExecutionStatus, LogStatus, Status, backend_status


class Worker:
    """Everything a worker holds. `on_backend` is told of new backends, so that they are probed."""

    def __init__(self, settings: ProxySettings, opener: Opener = open_new) -> None:
        self.settings = settings
        self.name = secrets.token_hex(4)
        self.router = Router(settings.backends)
        self.executions = Executions()
        self.metrics = Metrics()
        self.recorder = Recorder(Path(settings.logs), self.name, settings.log, opener)
        self.available = asyncio.Event()
        """Set while some backend serves; held calls wait for it."""
        self.stopping = False
        self.on_backend: Callable[[BackendState], None] = lambda _: None

    def apply(self, command: Command) -> None:
        """Carry out a command; a name it does not know changes nothing."""
        match command:
            case AddBackend(backend):
                self.on_backend(self.router.add(backend))
            case DrainBackend() | RemoveBackend() | SetVersion():
                self.router.apply(command)
            case PutExecution() | StartExecution() | EndExecution() | SpendExecution():
                self.executions.apply(command)
            case ForgetLog():
                self.recorder.forget()
        self.refresh()

    def refresh(self) -> None:
        """Wake or stop held calls after anything about backends changed."""
        if self.router.any_ready():
            self.available.set()
        else:
            self.available.clear()

    def snapshot(self, executions: Iterable[ExecutionStatus] = ()) -> Status:
        """What this worker knows; of the executions those given."""
        recorder = self.recorder
        return Status(
            workers=1,
            stopping=self.stopping,
            backends={b.name: backend_status(b) for b in self.router.backends.values()},
            executions={execution.name: execution for execution in executions},
            log=LogStatus(
                rows=recorder.rows,
                unrecorded=recorder.unrecorded,
                bytes=recorder.bytes,
                problems=[recorder.problem] if recorder.problem else [],
            ),
            metrics=self.metrics.snapshot(),
        )
