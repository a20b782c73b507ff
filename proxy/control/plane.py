"""What a worker's control API can do beyond its own process.

With one worker there is nothing beyond it; with several the supervisor reaches them all. The
control API knows only `ControlPlane`, so it answers the same from every worker.
"""

from __future__ import annotations

from typing import Protocol

from gyre.proxy.commands import Command
from gyre.proxy.errors import RequestError
from gyre.proxy.serve.channel import (
    Ask,
    Channel,
    Failed,
    Message,
    Report,
    SealAll,
    Sealed,
    SealReport,
    Submit,
)
from gyre.proxy.status import ExecutionQuery, Status, selected_here
from gyre.proxy.worker import Worker

NO_EXECUTIONS = ExecutionQuery()


class ControlPlane(Protocol):
    async def submit(self, command: Command) -> None:
        """Returns when every worker has carried it out."""

    async def status(self, query: ExecutionQuery = NO_EXECUTIONS) -> Status:
        """All workers as one."""

    async def seal(self) -> list[SealReport]:
        """Rotate and seal in every worker."""


class LocalPlane:
    """The only worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def submit(self, command: Command) -> None:
        self._worker.apply(command)

    async def status(self, query: ExecutionQuery = NO_EXECUTIONS) -> Status:
        return self._worker.snapshot(selected_here(self._worker.executions, query))

    async def seal(self) -> list[SealReport]:
        return [await self._worker.recorder.rotate()]


class SupervisedPlane:
    """One of several workers; the supervisor carries out what concerns all of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def submit(self, command: Command) -> None:
        await self._ask(Submit(command))

    async def status(self, query: ExecutionQuery = NO_EXECUTIONS) -> Status:
        answer = await self._ask(Ask(query))
        assert isinstance(answer, Report)
        return answer.status

    async def seal(self) -> list[SealReport]:
        answer = await self._ask(SealAll())
        assert isinstance(answer, Sealed)
        return answer.reports

    async def _ask(self, message: Message) -> Message:
        try:
            answer = await self._channel.ask(message)
        except ConnectionError:
            gone = "the supervisor of this worker is gone"
            raise RequestError(gone, status=503, code="shutting_down") from None
        if isinstance(answer, Failed):
            raise RequestError(answer.message, status=503, code="unavailable", hint=answer.hint)
        return answer
