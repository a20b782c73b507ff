"""Attempts of one call: which backend, tried how often, until one begins to answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp

from gyre.proxy import answer, outcome
from gyre.proxy.calls import Outcome, Phase, Wire
from gyre.proxy.counting import counting
from gyre.proxy.errors import RequestError
from gyre.proxy.log.record.attempt import Attempt
from gyre.proxy.prepared import Prepared, prepare
from gyre.proxy.restore import SampledOf
from gyre.proxy.router import BackendState
from gyre.proxy.wires import known

if TYPE_CHECKING:
    from gyre.proxy.exchange import Exchange

_RETRY_STATUS = (502, 503, 504)
_MOST_ATTEMPTS = 8
_WEIGHT = 8
"""What a body weighs while it is translated, in its own bytes: parsed, and written anew."""
_REFUSED = (400, 500)
"""A template that raises is a 400 to some engines and a 500 to others."""


async def attempts(ex: Exchange) -> None:
    """Try backends until one begins to answer or none is left to try."""
    excluded: set[str] = set()
    lost: dict[str, int] = {}
    for _ in range(_MOST_ATTEMPTS):
        backend = await _route(ex, excluded)
        attempt = ex.attempt = _attempt(ex, ex.tried, backend)
        ex.worker.recorder.intend(attempt)
        backend.open += 1
        backend.calls += 1
        try:
            again = await _try(ex, attempt, backend, excluded, lost)
        finally:
            backend.open -= 1
        if not again:
            return
        ex.worker.metrics.retries += 1
        attempt.last = False
        await outcome.commit(ex, attempt)
        ex.tried += 1
    raise RequestError(f"{_MOST_ATTEMPTS} attempts failed", status=502, code="upstream_failed")


def _attempt(ex: Exchange, number: int, backend: BackendState) -> Attempt:
    model = ex.ask.model if ex.ask else None
    return Attempt(
        call=ex.call,
        number=number,
        backend=backend.name,
        cell=backend.settings.cell,
        engine=backend.engine.value if backend.engine else None,
        upstream_model=backend.settings.models.get(model, model) if model else None,
        defaults=backend.defaults,
        version=backend.version,
        phase=Phase.FIRST_BYTE,
    )


async def _route(ex: Exchange, excluded: set[str]) -> BackendState:
    """The next backend; waits for one within the hold limit.

    Raises:
        RequestError: 503 when none came, saying what is wrong with each.
    """
    router = ex.worker.router
    while (backend := _pick(ex, excluded)) is None:
        left = ex.limits.hold_s - ex.call.held_s
        if left <= 0 or ex.worker.metrics.holding >= ex.limits.hold_calls:
            raise RequestError(f"no engine is ready: {router.why_not()}", status=503, code="no_backend")
        await _hold(ex, left)
        excluded.clear()
    return backend


def _pick(ex: Exchange, excluded: set[str]) -> BackendState | None:
    """A ready backend; when all that are ready have failed once, one of them again."""
    router, execution = ex.worker.router, ex.call.identity.execution_id
    backend = router.pick(execution, excluded)
    if backend is None and router.any_ready():
        excluded.clear()
        backend = router.pick(execution)
    return backend


async def _hold(ex: Exchange, seconds: float) -> None:
    """Wait until some backend serves, at most so long."""
    metrics, since = ex.worker.metrics, time.monotonic()
    waits = ex.worker.executions.get(ex.call.identity.execution_id).held
    ex.clock.enter(Phase.HOLD)
    metrics.holding += 1
    waits.enter()
    try:
        await asyncio.wait_for(ex.worker.available.wait(), seconds)
    except TimeoutError:
        pass
    finally:
        metrics.holding -= 1
        waits.leave()
        held = time.monotonic() - since
        ex.call.held_s += held
        ex.clock.extend(held)


async def _try(
    ex: Exchange, attempt: Attempt, backend: BackendState, excluded: set[str], lost: dict[str, int]
) -> bool:
    """Send one attempt and answer the client from it; True when another one shall be made."""
    prepared = await _prepared(ex, attempt, backend)
    attempt.upstream_wire = Wire.CHAT.value if prepared.translation else None
    ex.worker.metrics.overhead.observe(time.monotonic() - ex.started - ex.call.held_s)
    ex.clock.enter(Phase.FIRST_BYTE)
    try:
        response = await ex.relay.upstream.send(
            backend,
            ex.call.method,
            prepared.target or ex.target,
            ex.scope["headers"],
            prepared.body,
            coded=ex.call.wire == Wire.OPAQUE,
            translated=prepared.target is not None,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        return await _unreachable(ex, attempt, backend, error, excluded)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        return await _disconnected(ex, attempt, backend, error, excluded, lost)
    except aiohttp.ClientError as error:
        attempt.status = 502
        text = f"backend `{backend.name}` sent something that is no HTTP answer: {error}"
        await outcome.fail(ex, attempt, Outcome.UPSTREAM_ERROR, text)
        return False
    except asyncio.CancelledError:
        return await outcome.stopped(ex, attempt, None)
    async with response:
        attempt.status = response.status
        if _try_elsewhere(ex, response.status, backend, excluded):
            attempt.error = f"status {response.status}"
            excluded.add(backend.name)
            return True
        if response.status in _REFUSED and prepared.hide:
            return await answer.refused(ex, attempt, response, prepared, backend)
        await answer.deliver(ex, attempt, response, prepared)
    return False


async def _prepared(ex: Exchange, attempt: Attempt, backend: BackendState) -> Prepared:
    """The request for this backend; what cannot be carried is flagged."""
    call, ask = ex.call, ex.ask
    if call.wire == Wire.COUNT_TOKENS:
        return await counting(ex, backend)
    if call.top is None or ask is None or backend.engine is None:
        return Prepared([call.body])
    execution = ex.worker.executions.get(call.identity.execution_id)
    pin = execution.pin or ex.worker.settings.pin
    memory, flags = ex.relay.sampled, ["fields_refused"] if ex.fields_refused else []

    def made(sampled: SampledOf) -> Prepared:
        return prepare(call, ask, backend, pin, ex.restores(), sampled, capture=not ex.fields_refused)

    sampled = memory.of(execution.name)
    with ex.weighing(_WEIGHT * len(call.body) if call.wire in known.TRANSLATED else 0):
        prepared = made(sampled)
        if sampled.missed and await memory.read_log(execution.name, sampled.missed):
            prepared = made(memory.of(execution.name))
        elif sampled.missed:
            flags.append("arguments_unknown")
    call.ask = prepared.ask
    attempt.flags = [*flags, *prepared.flags]
    return prepared


async def _disconnected(
    ex: Exchange,
    attempt: Attempt,
    backend: BackendState,
    error: Exception,
    excluded: set[str],
    lost: dict[str, int],
) -> bool:
    """The connection broke before any byte of an answer; `lost` counts that by backend.

    Once, that is a pooled connection which the engine had closed meanwhile. Twice at once, it may die: it
    still takes connections then, and the call waits for it as for one that takes none. More is a fault.
    """
    attempt.error = str(error) or type(error).__name__
    times = lost[backend.name] = lost.get(backend.name, 0) + 1
    if times == 1:
        return True
    excluded.add(backend.name)
    if ex.worker.router.pick(ex.call.identity.execution_id, excluded):
        return True
    if times == 2 and not ex.call.held_s:
        ex.relay.prober.failed(backend, attempt.error)
        return True
    text = f"backend `{backend.name}` closed the connection without an answer: {attempt.error}"
    attempt.status = 502
    await outcome.fail(ex, attempt, Outcome.UPSTREAM_ERROR, text)
    return False


def _try_elsewhere(ex: Exchange, status: int, backend: BackendState, excluded: set[str]) -> bool:
    if status not in _RETRY_STATUS:
        return False
    others = [b for b in ex.worker.router.backends.values() if b.serves and b.name not in excluded]
    return any(b is not backend for b in others)


async def _unreachable(
    ex: Exchange, attempt: Attempt, backend: BackendState, error: Exception, excluded: set[str]
) -> bool:
    """Take the backend out; another one, or its return, gets the call."""
    attempt.error = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        attempt.outcome = Outcome.TIMEOUT
    attempt.phase = Phase.CONNECT
    ex.relay.prober.failed(backend, attempt.error)
    excluded.add(backend.name)
    return True
