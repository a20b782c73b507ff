"""How an attempt ends, whatever it was: recorded, and the client told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import aiohttp

from gyre.proxy.calls import Outcome, Phase
from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.events import Events
from gyre.proxy.log.record.attempt import Attempt
from gyre.proxy.replies import client_status, error_in

if TYPE_CHECKING:
    from gyre.proxy.exchange import Exchange

log = logging.getLogger(__name__)
_NOT_PASSED_ON = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "content-encoding",
}
KEPT = 1 << 16
"""Of answers that are not understood, so much is kept."""


async def commit(ex: Exchange, attempt: Attempt) -> None:
    """Record the attempt; the client is answered whether or not the disk takes it."""
    call, worker = attempt.call, ex.worker
    attempt.recorded = True
    backend = worker.router.backends.get(attempt.backend or "")
    attempt.version_changed = backend is not None and backend.version != attempt.version
    if attempt.last and worker.executions.get(call.identity.execution_id).ends > call.execution_attempt:
        call.flags.append("late")
    if attempt.captured and ex.remembers():
        for choice in attempt.captured.choices:
            ex.relay.sampled.learn(call.identity.execution_id, choice.message)
    rows = await worker.recorder.commit(attempt)
    worker.metrics.count(attempt, rows)
    execution = worker.executions.get(call.identity.execution_id)
    execution.prompt_tokens += rows[0].prompt_tokens or 0
    sampled = sum(len(row.output or b"") // 4 for row in rows)
    execution.output_tokens += sampled
    if call.wire.generates:
        tally = execution.tally_of(call.execution_attempt)
        tally.note(attempt.outcome, attempt.error, attempt.status, sampled, time.time_ns())
    refused = 400 <= (attempt.status or 0) < 500
    if attempt.outcome not in (Outcome.OK, Outcome.CLIENT_GONE) and not refused:
        log.warning("call %s: %s (%s): %s", call.call_id, attempt.outcome, attempt.phase, attempt.error)


async def fail(ex: Exchange, attempt: Attempt, outcome: Outcome, text: str) -> None:
    """Record a failure and tell the client, in its stream if one has begun.

    What the engine cut is left unfinished, as without us: agents take that for a broken connection and go
    on or try again, while an error in a stream ends them. So is any other answer that has begun.
    """
    ex.clock.stop()
    attempt.outcome, attempt.error = outcome, text
    await commit(ex, attempt)
    status = 504 if outcome == Outcome.TIMEOUT else 502
    if not ex.begun:
        body = error_in(ex.call.wire, status, text, outcome.value)
        await send_whole(ex, client_status(ex.call.wire, status), body, {})
    elif ex.events is not None and outcome != Outcome.UPSTREAM_CUT:
        event = ex.events.broken(status, text, outcome.value)
        await ex.send({"type": "http.response.body", "body": event})


async def abandoned(ex: Exchange, attempt: Attempt, reason: str) -> None:
    """The engine says itself that the answer is none: for the client it broke off, so that it asks again."""
    text = f"backend `{attempt.backend}` abandoned the answer: finish_reason `{reason}`"
    await fail(ex, attempt, Outcome.UPSTREAM_CUT, text)


async def stopped(ex: Exchange, attempt: Attempt, capture: Events | None) -> bool:
    """The attempt was cancelled: by a limit, by the client, or by the proxy's own end. Always False.

    Raises:
        CancelledError: the proxy itself is being stopped.
    """
    if ex.clock.cancelled_by_us:
        ex.clock.absorb()
    attempt.phase = ex.clock.fired or ex.clock.phase
    if capture is not None:
        attempt.captured = capture.finish(complete=False)
    if ex.clock.fired:
        who = f"backend `{attempt.backend}`" if attempt.backend else "the call"
        await fail(ex, attempt, Outcome.TIMEOUT, f"{who} reached the {ex.clock.fired.value} limit")
        return False
    gone = ex.clock.gone
    attempt.outcome = Outcome.CLIENT_GONE if gone else Outcome.INTERRUPTED
    attempt.error = None if gone else "the proxy was stopped"
    ex.clock.stop()
    await commit(ex, attempt)
    if not gone:
        raise asyncio.CancelledError
    return False


async def finish(ex: Exchange, attempt: Attempt, captured: Captured) -> None:
    """A whole answer: complete its ids and record it."""
    attempt.outcome, attempt.phase = Outcome.OK, Phase.DONE
    backend = ex.worker.router.backends.get(attempt.backend or "")
    if captured.prompt_ids is None and captured.prompt_text is not None and backend is not None:
        captured.prompt_ids = await ex.relay.upstream.tokenize(backend, captured.prompt_text)
    ex.clock.stop()
    await commit(ex, attempt)


async def send_whole(ex: Exchange, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    pairs = _pairs(headers)
    if "content-type" not in headers:
        pairs.append((b"content-type", b"application/json"))
    pairs.append((b"content-length", b"%d" % len(body)))
    pairs.append((b"x-gyre-call-id", ex.call.call_id.encode()))
    ex.begun = True
    await ex.send({"type": "http.response.start", "status": status, "headers": pairs})
    await ex.send({"type": "http.response.body", "body": body})


async def begin(ex: Exchange, response: aiohttp.ClientResponse, *, streaming: bool) -> None:
    """The start of an answer whose length is not known; only one of events is decoded on its way."""
    headers = passed_on(response)
    if not streaming and (coding := response.headers.get("content-encoding")):
        headers["content-encoding"] = coding
    pairs = [*_pairs(headers), (b"x-gyre-call-id", ex.call.call_id.encode())]
    ex.begun = True
    await ex.send({"type": "http.response.start", "status": response.status, "headers": pairs})


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As bytes again: aiohttp keeps what is not UTF-8 as surrogates."""
    return [(n.encode(), v.encode("utf-8", "surrogateescape")) for n, v in headers.items()]


def passed_on(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {n.lower(): v for n, v in response.headers.items() if n.lower() not in _NOT_PASSED_ON}


def first_byte(ex: Exchange, attempt: Attempt) -> None:
    attempt.first_byte_ns, attempt.phase = ex.now_ns(), Phase.IDLE
    ex.clock.enter(Phase.IDLE)
