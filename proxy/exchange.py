"""One request from its first header to its last byte: who asks, which backend, tried how often.

Reads top to bottom: `run` admits the request, `_attempts` finds backends and retries before the first
byte, `_try` sends one attempt; `gyre.proxy.answer` brings the answer to the client and the record.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import aiohttp
import msgspec
import xxhash

from gyre.proxy import answer, outcome
from gyre.proxy.body import ClientLeft, decoded, read_body, too_large
from gyre.proxy.calls import Identity, Outcome, Phase, Wire
from gyre.proxy.capture.profiles import (
    Ask,
    Hidden,
    fields_to_set,
    hidden,
    pinned_fields,
    pinned_sampling,
    read_ask,
)
from gyre.proxy.capture.reply import Ids
from gyre.proxy.capture.splice import parse_object, with_fields
from gyre.proxy.clock import CallClock
from gyre.proxy.errors import RequestError
from gyre.proxy.identity import api_key, identify, split_path
from gyre.proxy.log.record.attempt import Attempt, Call
from gyre.proxy.replay import Stored
from gyre.proxy.replies import body_of
from gyre.proxy.router import BackendState
from gyre.proxy.upstream import Body

if TYPE_CHECKING:
    from gyre.proxy.relay import Receive, Relay, Scope, Send

log = logging.getLogger(__name__)
_WIRES = {
    ("POST", "/chat/completions"): Wire.CHAT,
    ("POST", "/completions"): Wire.COMPLETIONS,
    ("GET", "/models"): Wire.MODELS,
}
_RETRY_STATUS = (502, 503, 504)
_MOST_ATTEMPTS = 8


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
        self.clock = CallClock(relay.worker.settings.timeouts, receive)
        self.receive = receive
        self.reserved = 0
        self.begun = False
        """Whether the client has been sent the start of an answer."""
        self.streaming = False
        """Whether that is a stream of events, in which an error can still be said."""
        self.call = Call(
            call_id=f"{self.worker.recorder.next_order():016x}{self.worker.name}",
            identity=Identity("unnamed", "none"),
            execution_attempt=0,
            wire=Wire.OPAQUE,
            method=scope["method"],
            path=scope["path"],
        )
        self.ask: Ask | None = None
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
        finally:
            self.clock.stop()
            self.relay.budget.give(self.reserved)
            metrics.in_flight -= 1

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
            if not await self._replayed():
                await self._attempts()
        finally:
            self.worker.executions.end_call(execution, self.call.execution_attempt)

    def _check_access(self) -> None:
        if self.headers.get("upgrade", "").lower() == "websocket":
            raise RequestError(
                "this proxy speaks HTTP, not WebSocket", status=426, code="websocket_unsupported"
            )
        token = self.relay.token
        if token is not None:
            shown = self.headers.get("x-gyre-token") or api_key(self.headers) or ""
            if not hmac.compare_digest(shown.encode(), token.encode()):
                raise RequestError("the proxy's token is missing or wrong", status=401, code="invalid_token")
        if self.worker.stopping:
            raise RequestError("the proxy is shutting down", status=503, code="shutting_down")
        if problem := self.worker.recorder.problem:
            raise RequestError(f"calls cannot be recorded: {problem}", status=503, code="recording_failed")

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
        if call.wire in (Wire.CHAT, Wire.COMPLETIONS):
            call.top = parse_object(call.body)
            self.ask = call.ask = read_ask(call.wire, call.top)
            if "prompt_cache_key" in call.top and not call.identity.session_id:
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

    async def _attempts(self) -> None:
        """Try backends until one begins to answer or none is left to try."""
        excluded: set[str] = set()
        stale: set[str] = set()
        for _ in range(_MOST_ATTEMPTS):
            backend = await self._route(excluded)
            attempt = self._attempt(self.tried, backend)
            self.worker.recorder.intend(attempt)
            backend.open += 1
            backend.calls += 1
            try:
                again = await self._try(attempt, backend, excluded, stale)
            finally:
                backend.open -= 1
            if not again:
                return
            self.worker.metrics.retries += 1
            attempt.last = False
            await outcome.commit(self, attempt)
            self.tried += 1
        raise RequestError(f"{_MOST_ATTEMPTS} attempts failed", status=502, code="upstream_failed")

    def _attempt(self, number: int, backend: BackendState) -> Attempt:
        model = self.ask.model if self.ask else None
        return Attempt(
            call=self.call,
            number=number,
            backend=backend.name,
            cell=backend.settings.cell,
            engine=backend.engine.value if backend.engine else None,
            upstream_model=backend.settings.models.get(model, model) if model else None,
            defaults=backend.defaults,
            version=backend.version,
            phase=Phase.FIRST_BYTE,
        )

    async def _route(self, excluded: set[str]) -> BackendState:
        """The next backend; waits for one within the hold limit.

        Raises:
            RequestError: 503 when none came, saying what is wrong with each.
        """
        router = self.worker.router
        while (backend := self._pick(excluded)) is None:
            left = self.limits.hold_s - self.call.held_s
            if left <= 0 or self.worker.metrics.holding >= self.limits.hold_calls:
                raise RequestError(f"no engine is ready: {router.why_not()}", status=503, code="no_backend")
            await self._hold(left)
            excluded.clear()
        return backend

    def _pick(self, excluded: set[str]) -> BackendState | None:
        """A ready backend; when all that are ready have failed once, one of them again."""
        router, execution = self.worker.router, self.call.identity.execution_id
        backend = router.pick(execution, excluded)
        if backend is None and router.any_ready():
            excluded.clear()
            backend = router.pick(execution)
        return backend

    async def _hold(self, seconds: float) -> None:
        """Wait until some backend serves, at most so long."""
        metrics, since = self.worker.metrics, time.monotonic()
        self.clock.enter(Phase.HOLD)
        metrics.holding += 1
        try:
            await asyncio.wait_for(self.worker.available.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            metrics.holding -= 1
            held = time.monotonic() - since
            self.call.held_s += held
            self.clock.extend(held)

    async def _try(
        self, attempt: Attempt, backend: BackendState, excluded: set[str], stale: set[str]
    ) -> bool:
        """Send one attempt and answer the client from it; True when another one shall be made."""
        body, hide = self._prepared(backend)
        self.worker.metrics.overhead.observe(time.monotonic() - self.started - self.call.held_s)
        self.clock.enter(Phase.FIRST_BYTE)
        try:
            response = await self.relay.upstream.send(
                backend,
                self.call.method,
                self.target,
                self.scope["headers"],
                body,
                coded=self.call.wire == Wire.OPAQUE,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return await self._unreachable(attempt, backend, error, excluded)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            return await self._disconnected(attempt, backend, error, excluded, stale)
        except aiohttp.ClientError as error:
            attempt.status = 502
            text = f"backend `{backend.name}` sent something that is no HTTP answer: {error}"
            await outcome.fail(self, attempt, Outcome.UPSTREAM_ERROR, text)
            return False
        except asyncio.CancelledError:
            return await outcome.stopped(self, attempt, None)
        async with response:
            attempt.status = response.status
            if self._try_elsewhere(response.status, backend, excluded):
                attempt.error = f"status {response.status}"
                excluded.add(backend.name)
                return True
            if response.status == 400 and hide and not self.fields_refused:
                # Maybe it is our fields that it refuses; the client must never see that.
                self.fields_refused = True
                return await answer.refused(self, attempt, response)
            await answer.deliver(self, attempt, response, hide)
        return False

    def _prepared(self, backend: BackendState) -> tuple[Body, Hidden | None]:
        """The body as this backend shall get it, and what the client must not see of the answer."""
        call, ask = self.call, self.ask
        if call.top is None or ask is None or backend.engine is None:
            return [call.body], None
        execution = self.worker.executions.get(call.identity.execution_id)
        fields = pinned_fields(execution.pin or self.worker.settings.pin)
        if fields:
            call.ask = replace(ask, sampling=pinned_sampling(ask.sampling, fields))
        mapped = backend.settings.models.get(ask.model) if ask.model else None
        if mapped:
            fields["model"] = msgspec.json.encode(mapped)
        wanted = {} if self.fields_refused else fields_to_set(backend.engine, ask)
        if self.fields_refused and "fields_refused" not in call.flags:
            call.flags.append("fields_refused")
        hide = hidden(backend.engine, ask, wanted) if wanted else None
        fields |= wanted
        return with_fields(call.body, call.top, fields) if fields else [call.body], hide

    async def _disconnected(
        self,
        attempt: Attempt,
        backend: BackendState,
        error: Exception,
        excluded: set[str],
        stale: set[str],
    ) -> bool:
        """The connection broke before any byte of an answer.

        Once, that is a pooled connection which the engine had closed meanwhile; twice it is a fault.
        """
        attempt.error = str(error) or type(error).__name__
        if backend.name not in stale:
            stale.add(backend.name)
            return True
        excluded.add(backend.name)
        if self.worker.router.pick(self.call.identity.execution_id, excluded):
            return True
        text = f"backend `{backend.name}` closed the connection without an answer: {attempt.error}"
        attempt.status = 502
        await outcome.fail(self, attempt, Outcome.UPSTREAM_ERROR, text)
        return False

    def _try_elsewhere(self, status: int, backend: BackendState, excluded: set[str]) -> bool:
        if status not in _RETRY_STATUS:
            return False
        others = [b for b in self.worker.router.backends.values() if b.serves and b.name not in excluded]
        return any(b is not backend for b in others)

    async def _unreachable(
        self, attempt: Attempt, backend: BackendState, error: Exception, excluded: set[str]
    ) -> bool:
        """Take the backend out; another one, or its return, gets the call."""
        attempt.error = str(error) or type(error).__name__
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            attempt.outcome = Outcome.TIMEOUT
        attempt.phase = Phase.CONNECT
        self.relay.prober.failed(backend, attempt.error)
        excluded.add(backend.name)
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
        await outcome.send_whole(self, error.status, body_of(error), extra)

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
