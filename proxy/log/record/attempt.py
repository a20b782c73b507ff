"""One call and its attempts while they run; `gyre.proxy.log.record.rows` turns them into rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gyre.proxy.calls import Identity, IntentRecord, Outcome, Phase, Sampling, Wire
from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.profiles import Ask
from gyre.proxy.capture.splice import Object


@dataclass(slots=True)
class Call:
    """What stays the same over the attempts of one call."""

    call_id: str
    identity: Identity
    execution_attempt: int
    wire: Wire
    method: str
    path: str
    body: bytes = b""
    body_bytes: int = 0
    digest: bytes = b""
    """xxh3-128 of the body as the client sent it."""
    top: Object | None = None
    """Top level of a JSON body that is to be taken apart."""
    ask: Ask | None = None
    flags: list[str] = field(default_factory=list)
    held_s: float = 0.0


@dataclass(slots=True)
class Attempt:
    """One try of a call against one backend; filled in as it goes."""

    call: Call
    number: int = 0
    backend: str | None = None
    cell: str | None = None
    engine: str | None = None
    upstream_model: str | None = None
    upstream_wire: str | None = None
    defaults: Sampling = field(default_factory=Sampling)
    """The backend's sampling where the request leaves it open."""
    version: str | None = None
    """Policy version at dispatch, from the control API."""
    version_changed: bool = False
    started_ns: int = field(default_factory=time.time_ns)
    first_byte_ns: int | None = None
    outcome: Outcome = Outcome.UPSTREAM_ERROR
    phase: Phase = Phase.REQUEST
    status: int | None = None
    error: str | None = None
    captured: Captured | None = None
    response_bytes: int = 0
    response_digest: bytes = b""
    raw_response: bytes | None = None
    delivery_of: str | None = None
    recorded: bool = False
    flags: list[str] = field(default_factory=list)
    """What could not be carried, or was done to the request of this attempt."""
    last: bool = True
    """Whether this is the call's final attempt, whose row carries the request."""


def intent_of(attempt: Attempt, order: int, worker: str) -> IntentRecord:
    call = attempt.call
    return IntentRecord(
        order=order,
        worker=worker,
        call_id=call.call_id,
        attempt=attempt.number,
        execution_id=call.identity.execution_id,
        execution_attempt=call.execution_attempt,
        wire=call.wire.value,
        method=call.method,
        path=call.path,
        model=call.ask.model if call.ask else None,
        backend=attempt.backend or "",
        stream=bool(call.ask and call.ask.stream),
        started_ns=attempt.started_ns,
        request_digest=call.digest,
    )
