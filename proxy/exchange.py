"""One request from its first header to its last byte.

Reads top to bottom: `run` admits the request and takes its body in; `gyre.proxy.attempts` finds
backends and retries before the first byte; `gyre.proxy.answer` brings the answer to the client and
the record.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import xxhash

from gyre.proxy import allowance, answer, outcome
from gyre.proxy.access import require_access
from gyre.proxy.attempts import attempts
from gyre.proxy.body import ClientLeft, decoded, read_body, too_large
from gyre.proxy.calls import Identity, Outcome, Phase, Wire
from gyre.proxy.capture.events import Events
from gyre.proxy.capture.profiles import (
    Ask,
    read_ask,
)
from gyre.proxy.capture.reply import Ids
from gyre.proxy.capture.splice import parse_object
from gyre.proxy.clock import CallClock
from gyre.proxy.errors import RequestError
from gyre.proxy.executions import ExecutionState
from gyre.proxy.identity import BODY_HINTS, identify, split_path
from gyre.proxy.log.record.attempt import Attempt, Call
from gyre.proxy.replay import Stored
from gyre.proxy.replies import body_of, client_status, error_in
from gyre.proxy.wires import known

if TYPE_CHECKING:
    from gyre.proxy.relay import Receive, Relay, Scope, Send

log = logging.getLogger(__name__)
_WIRES = {
    ("POST", "/chat/completions"): Wire.CHAT,
    ("POST", "/completions"): Wire.COMPLETIONS,
    ("POST", "/messages"): Wire.MESSAGES,
    ("POST", "/messages/count_tokens"): Wire.COUNT_TOKENS,
    ("POST", "/responses"): Wire.RESPONSES,
    ("GET", "/models"): Wire.MODELS,
}


def wire_of(method: str, path: str) -> Wire:
    """Agents differ in whether their base URL ends in /v1."""
    return _WIRES.get((method, path.removeprefix("/v1")), Wire.OPAQUE)


class Exchange:
    """One request. Its parts read and fill the same state, so it is one object."""

    def __init__(self, relay: Relay, scope: Scope, receive: Receive, send: Send) -> None:
        self.relay = relay
        self.worker = relay.worker
        self.limits = relay.worker.settings.limits
        self.scope = scope
        self.send = send
        self.started = time.monotonic()
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.clock = CallClock(relay.clock_limits, receive)
        self.receive = receive
        self.reserved = 0
        self.begun = False
        """Whether the client has been sent the start of an answer."""
        self.events: Events | None = None
        """The stream that it is, in which an error can still be said."""
        self.call = Call(
            call_id=f"{self.worker.recorder.next_order():016x}{self.worker.name}",
            identity=Identity("unnamed", "none"),
            execution_attempt=0,
            wire=Wire.OPAQUE,
            method=scope["method"],
            path=scope["path"],
        )
        self.ask: Ask | None = None
        self.attempt: Attempt | None = None
        """The one under way, or the last one."""
        self.tried = 0
        """Attempts that have been recorded."""
        self.fields_refused = False
        self.kept: list[bytes] = []

    async def run(self) -> None:
        metrics = self.worker.metrics
        metrics.in_flight += 1
        try:
            await self._admit()
        except RequestError as error:
            self.clock.stop()
            await self._refuse(error)
        except (ClientLeft, asyncio.CancelledError) as error:
            await self._broken_off(error)
        except Exception as error:
            # The one place where any error is taken: a fault of ours must not cost the record of a call.
            await self._faulted(error)
        finally:
            self.clock.stop()
            self.relay.budget.give(self.reserved)
            metrics.in_flight -= 1

    async def _faulted(self, error: Exception) -> None:
        """Something in here is wrong: the call is recorded all the same, and the client told."""
        log.exception("call %s: a fault of gyre's", self.call.call_id)
        self.clock.stop()
        attempt = self.attempt or Attempt(self.call, number=self.tried)
        text = f"gyre failed: {type(error).__name__}: {error}"
        if not attempt.recorded:
            attempt.outcome, attempt.error = Outcome.UPSTREAM_ERROR, text
            try:
                await outcome.commit(self, attempt)
            except Exception:
                attempt.captured = None  # what was captured cannot be recorded; that there was a call can
                await outcome.commit(self, attempt)
        if not self.begun:
            body = error_in(self.call.wire, 500, text, "internal_error")
            await outcome.send_whole(self, 500, body, {})

    async def _broken_off(self, error: BaseException) -> None:
        """No attempt is under way, and the client is gone or the whole call's limit is reached."""
        attempt = Attempt(self.call, number=self.tried, outcome=Outcome.CLIENT_GONE, phase=self.clock.phase)
        if isinstance(error, ClientLeft):
            self.clock.stop()
            await outcome.commit(self, attempt)
        elif self.clock.cancelled_by_us:
            await outcome.stopped(self, attempt, None)
        else:
            raise error

    def reserve(self, size: int) -> None:
        """Count bytes that this exchange holds until its end; fewer of them when `size` is negative."""
        self.reserved += size
        if size > 0:
            self.relay.budget.charge(size)
        else:
            self.relay.budget.give(-size)

    @contextmanager
    def weighing(self, size: int) -> Iterator[None]:
        """Count bytes that are held for a moment."""
        self.reserve(size)
        try:
            yield
        finally:
            self.reserve(-size)

    async def _admit(self) -> None:
        # A name is read where nothing has been decoded yet: %2f must not end it.
        url_name, target = split_path(self.scope["raw_path"].decode("latin-1"))
        query = self.scope["query_string"]
        self.target = target.encode("latin-1") + (b"?" + query if query else b"")
        self.call.path = path = unquote(target)
        self.call.wire = wire_of(self.call.method, path)
        self.call.identity = identify(url_name, self.headers)
        self._check_access()
        await self._read(url_name)
        execution = self.worker.executions.begin_call(self.call.identity.execution_id)
        self.call.execution_attempt = execution.ends
        try:
            self._check_limits(execution)
            if not await self._replayed():
                await attempts(self)
        finally:
            self.worker.executions.end_call(execution, self.call.execution_attempt)

    def _check_access(self) -> None:
        if self.headers.get("upgrade", "").lower() == "websocket":
            raise RequestError(
                "this proxy speaks HTTP, not WebSocket", status=426, code="websocket_unsupported"
            )
        require_access(self.call, self.headers, self.relay.token)
        if self.worker.stopping:
            raise RequestError("the proxy is shutting down", status=503, code="shutting_down")
        if problem := self.worker.recorder.problem:
            raise RequestError(f"calls cannot be recorded: {problem}", status=503, code="recording_failed")

    def _check_limits(self, execution: ExecutionState) -> None:
        if not self.call.wire.generates:
            return
        attempt = self.call.execution_attempt
        tally = execution.tally_of(attempt)
        if limit := execution.limit_reached(attempt):
            tally.limit = limit
            raise RequestError(allowance.refusal(execution.name, limit), allowance.STATUS, allowance.CODE)
        tally.begun += 1

    async def _read(self, url_name: str | None) -> None:
        """Take the body in, and of a wire we know its meaning."""
        call, limits = self.call, self.limits
        length = int(self.headers.get("content-length") or 0)
        if length > limits.body:
            raise too_large(limits.body)
        await self.relay.budget.take(length, limits.hold_s)
        self.reserved += length
        charge = (lambda _: None) if length else self.reserve
        call.body = await read_body(self.receive, limits.body, charge)
        call.body_bytes = len(call.body)
        encoding = self.headers.get("content-encoding")
        if encoding and call.wire != Wire.OPAQUE:
            call.body = decoded(call.body, encoding, limits.body)
            self.reserve(len(call.body))
        call.digest = xxhash.xxh3_128_digest(call.body)
        if call.wire.generates:
            call.top = parse_object(call.body)
            self.ask = call.ask = read_ask(call.wire, call.top)
            if not call.identity.session_id and not call.top.keys().isdisjoint(BODY_HINTS):
                call.identity = identify(url_name, self.headers, call.top)

    async def _replayed(self) -> bool:
        """Send a stored answer again to a marked retry, when the proxy is set to."""
        call = self.call
        if not self.relay.replays or not call.identity.retry_count or self.ask is None:
            return False
        stored = self.relay.replays.get((call.identity.execution_id, call.digest))
        if stored is None:
            return False
        attempt = Attempt(call, outcome=Outcome.OK, phase=Phase.DONE, status=200, delivery_of=stored.call_id)
        await answer.replay(self, attempt, stored)
        return True

    async def _refuse(self, error: RequestError) -> None:
        """Say no in the wire's form, and record that we did."""
        attempt = Attempt(
            self.call, self.tried, outcome=Outcome.REJECTED, status=error.status, error=error.message
        )
        if error.code == "no_backend":
            attempt.phase = Phase.HOLD
        await outcome.commit(self, attempt)
        extra: MutableMapping[str, str] = {"retry-after": "5"} if error.status == 503 else {}
        wire = self.call.wire
        await outcome.send_whole(self, client_status(wire, error.status), body_of(error, wire), extra)

    def restores(self) -> bool:
        """Whether arguments of tool calls shall be put back as they were sampled."""
        execution = self.worker.executions.get(self.call.identity.execution_id)
        asked = execution.restore_arguments
        return self.worker.settings.restore_arguments if asked is None else asked

    def remembers(self) -> bool:
        """Whether this answer's arguments may be wanted again."""
        return self.call.wire in known.TRANSLATED or (self.call.wire == Wire.CHAT and self.restores())

    def parse_prompt(self, text: bytes) -> Ids | None:
        return self.relay.prompts.parse(self.call.identity.execution_id, text)

    def now_ns(self) -> int:
        return time.time_ns()

    def unmapped(self, data: bytes, attempt: Attempt) -> bytes:
        """The client's own model name in place of the engine's, where a mapping is set."""
        asked = self.ask.model if self.ask else None
        if asked is None or attempt.upstream_model in (None, asked):
            return data
        said, mine = msgspec.json.encode(attempt.upstream_model), msgspec.json.encode(asked)
        return re.sub(rb'("model"\s*:\s*)' + re.escape(said), lambda match: match[1] + mine, data)

    def keep(self, data: bytes) -> None:
        """Part of a streamed answer, for a retry to be answered from."""
        if self.relay.replays is not None:
            self.kept.append(data)

    def remember(self, attempt: Attempt, status: int, headers: dict[str, str], body: bytes) -> None:
        if self.relay.replays is not None:
            key = self.call.identity.execution_id, self.call.digest
            self.relay.replays.put(key, Stored(self.call.call_id, status, headers, body))

    def remember_stream(self, attempt: Attempt, headers: dict[str, str], end: bytes) -> None:
        if attempt.outcome == Outcome.OK:
            self.remember(attempt, 200, headers, b"".join([*self.kept, end]))
