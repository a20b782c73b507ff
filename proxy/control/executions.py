"""Routes for executions: what they are about, how their calls sample, how they ended and scored.

An event is in the log before it is carried out and answered, so what was answered is never lost.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query

from gyre.proxy.calls import ExecutionRecord
from gyre.proxy.commands import PutExecution
from gyre.proxy.control.bodies import (
    ErrorView,
    EventBody,
    EventView,
    ExecutionBody,
    ExecutionsView,
    ExecutionView,
)
from gyre.proxy.control.plane import ControlPlane
from gyre.proxy.control.short import ShortRoute
from gyre.proxy.errors import RequestError
from gyre.proxy.executions import ExecutionEvent, placed
from gyre.proxy.identity import checked_name
from gyre.proxy.status import ExecutionQuery, ExecutionStatus
from gyre.proxy.worker import Worker

Name = Annotated[str, Path(description="Name of the execution")]
Limit = Annotated[int, Query(ge=1, le=10_000, description="At most so many, the latest first")]
Prefix = Annotated[str, Query(description="Only names that begin so")]
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": ErrorView}}
_CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorView}, 503: {"model": ErrorView}}


class ExecutionRoutes:
    def __init__(self, worker: Worker, plane: ControlPlane) -> None:
        self._worker = worker
        self._plane = plane
        self._turn = asyncio.Lock()
        """Look, record and change are one step."""

    def add_to(self, router: APIRouter, prefix: str) -> None:
        """To `router` itself: those of routers in it take twice as long to be found."""
        add = partial(router.add_api_route, tags=["executions"])
        short = partial(add, route_class_override=ShortRoute)
        one = prefix + "/executions/{name}"
        short(one, self.get, response_model=ExecutionView, responses=_MISSING)
        short(one, self.put, methods=["PUT"], response_model=ExecutionView, responses=_CONFLICT)
        short(one + "/events", self.event, methods=["POST"], response_model=EventView, responses=_CONFLICT)
        add(prefix + "/executions", self.list_all, response_model=ExecutionsView)

    async def list_all(self, limit: Limit = 100, prefix: Prefix = "") -> ExecutionsView:
        """The executions seen since the proxy's start, the latest first."""
        status = await self._plane.status(ExecutionQuery(prefix=prefix, limit=limit))
        return ExecutionsView(executions=[ExecutionView.of(e) for e in status.executions.values()])

    async def get(self, name: Name) -> ExecutionView:
        """One execution."""
        known = await self._find(name)
        if known is None:
            message = f"no execution `{name}` has been seen since the proxy's start"
            raise RequestError(message, status=404, code="unknown_execution")
        return ExecutionView.of(known)

    async def put(self, name: Name, body: ExecutionBody) -> ExecutionView:
        """Say what an execution is about, how its calls sample, how many it has; the first time starts it."""
        pin = body.pin.pin() if body.pin else None
        async with self._turn:
            known = await self._find(name)
            if known and body.new:
                raise RequestError(f"execution `{name}` is known already", status=409, code="known_execution")
            started = known is None or not known.put
            event = ExecutionEvent.STARTED if started else ExecutionEvent.UPDATED
            record = self._new(name, known.attempt if known else 0, event)
            record.task, record.group, record.evaluation = body.task, body.group, body.evaluation
            limits = body.limits.allowance() if body.limits else None
            asked = {"pin": pin, "restore_arguments": body.restore_arguments, "limits": limits}
            record.details = _json({key: value for key, value in asked.items() if value is not None} or None)
            await self._write(record)
            about = body.task, body.group, body.evaluation
            await self._plane.submit(PutExecution(name, *about, pin, body.restore_arguments, limits))
        return await self.get(name)

    async def event(self, name: Name, body: EventBody) -> EventView:
        """Say that an execution started anew, ended, timed out or was scored."""
        event, outcome = ExecutionEvent(body.event), body.outcome_of()
        async with self._turn:
            known = await self._find(name)
            ends, begun = (known.ends, known.begun) if known else (0, 0)
            attempt, command = placed(name, ends, begun, event)
            if body.attempt not in (None, attempt):
                message = f"the event would be of attempt {attempt} of `{name}`, not of {body.attempt}"
                raise RequestError(message, status=409, code="other_attempt")
            record = self._new(name, attempt, event)
            record.outcome = outcome.value if outcome else None
            record.score, record.artifact, record.reason = body.score, body.artifact, body.reason
            record.details = _json(body.details)
            await self._write(record)
            if command:
                await self._plane.submit(command)
        return EventView(execution=name, attempt=attempt, event=event, outcome=outcome)

    async def _find(self, name: str) -> ExecutionStatus | None:
        query = ExecutionQuery(name=checked_name(name, "the URL"))
        return (await self._plane.status(query)).executions.get(name)

    def _new(self, name: str, attempt: int, event: ExecutionEvent) -> ExecutionRecord:
        recorder = self._worker.recorder
        return ExecutionRecord(
            order=recorder.next_order(),
            worker=recorder.worker,
            execution_id=name,
            execution_attempt=attempt,
            event=event.value,
            at_ns=time.time_ns(),
        )

    async def _write(self, record: ExecutionRecord) -> None:
        recorder = self._worker.recorder
        if not await recorder.event(record):
            message = f"the event of `{record.execution_id}` cannot be recorded: {recorder.problem}"
            raise RequestError(message, status=503, code="recording_failed")


def _json(details: dict[str, object] | None) -> bytes | None:
    if details is None:
        return None
    try:
        return msgspec.json.encode(details)
    except UnicodeEncodeError:
        message = "`details` holds half a surrogate pair, which is no text"
        raise RequestError(message, status=422, code="invalid_request") from None
