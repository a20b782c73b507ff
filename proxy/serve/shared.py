"""What all workers must agree on, as the supervisor keeps it: it outlives any one of them."""

from __future__ import annotations

from collections.abc import Iterator

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
from gyre.proxy.executions import Executions, ExecutionState
from gyre.proxy.router import BackendState, Router
from gyre.proxy.settings import Backend


class Shared:
    """Backends, versions and executions by way of the commands that were given."""

    def __init__(self, backends: list[Backend]) -> None:
        self.router = Router(backends)
        self.executions = Executions()

    def apply(self, command: Command) -> None:
        match command:
            case AddBackend(backend):
                self.router.add(backend)
            case DrainBackend() | RemoveBackend() | SetVersion():
                self.router.apply(command)
            case PutExecution() | StartExecution() | EndExecution() | SpendExecution():
                self.executions.apply(command)
            case ForgetLog():
                pass  # a worker that starts later has written nothing yet

    def replay(self) -> list[Command]:
        """The shortest list of commands that brings a worker without any backend to this state."""
        commands: list[Command] = []
        for backend in self.router.backends.values():
            commands += _replay_backend(backend)
        for execution in self.executions.known.values():
            commands += _replay_execution(execution)
        return commands


def _replay_backend(backend: BackendState) -> Iterator[Command]:
    yield AddBackend(backend.settings)
    if backend.version is not None:
        yield SetVersion(backend.name, backend.version)
    if backend.draining != backend.settings.draining:
        yield DrainBackend(backend.name, backend.draining)


def _replay_execution(execution: ExecutionState) -> Iterator[Command]:
    if execution.put:
        yield PutExecution(
            execution.name,
            execution.task,
            execution.group,
            execution.evaluation,
            execution.pin,
            execution.restore_arguments,
            execution.limits,
        )
    if execution.begun:
        yield StartExecution(execution.name, execution.begun)
    if execution.ends:
        yield EndExecution(execution.name, execution.ends)
    attempt, limit = execution.spent
    if limit:
        yield SpendExecution(execution.name, attempt, limit)
