"""From the engine's answer to the client and the record.

Plain answers go out after capture, streams (`gyre.proxy.streaming`) event by event. Whatever happens -
error, cut, timeout, a client that leaves - the attempt is recorded (`gyre.proxy.outcome`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import aiohttp
import xxhash

from gyre.proxy.body import inflated, inflater_of
from gyre.proxy.calls import Outcome, Phase, Wire
from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.native import capture_native
from gyre.proxy.capture.plain import Unreadable, capture_plain
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.capture.translated import translated_answer
from gyre.proxy.capture.whole import as_chunks
from gyre.proxy.counting import counted
from gyre.proxy.log.record.attempt import Attempt
from gyre.proxy.outcome import (
    KEPT,
    abandoned,
    begin,
    commit,
    fail,
    finish,
    first_byte,
    passed_on,
    send_whole,
    stopped,
)
from gyre.proxy.prepared import Prepared
from gyre.proxy.replay import Stored
from gyre.proxy.replies import (
    client_status,
    error_in,
    is_overflow,
    is_system_refused,
    overflow_in_openai_form,
    said_of,
)
from gyre.proxy.router import BackendState
from gyre.proxy.streaming import SHOW_ALL, stream
from gyre.proxy.wires import known

if TYPE_CHECKING:
    from gyre.proxy.exchange import Exchange

log = logging.getLogger(__name__)


async def deliver(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, prepared: Prepared
) -> None:
    """Bring `response` to the client in the way its kind needs."""
    streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    try:
        if prepared.counts:
            await _counted(ex, attempt, response)
        elif ex.ask is None:
            await _pass_through(ex, attempt, response)
        elif response.status != 200:
            await _error(ex, attempt, response, prepared)
        elif streamed:
            await stream(ex, attempt, response, prepared)
        else:
            await _plain(ex, attempt, response, prepared)
    except asyncio.CancelledError:
        if attempt.recorded:
            raise
        await stopped(ex, attempt, None)


async def refused(
    ex: Exchange,
    attempt: Attempt,
    response: aiohttp.ClientResponse,
    prepared: Prepared,
    backend: BackendState,
) -> bool:
    """An engine said no: True when the request shall be made again otherwise; else the client is told."""
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong as long:
        body, problem = b"".join(long.chunks), None
    except asyncio.CancelledError:
        return await stopped(ex, attempt, None)
    attempt.raw_response = body[:KEPT]
    attempt.error = problem or body[:500].decode(errors="replace")
    if _another_way(ex, response.status, body, prepared, backend):
        return True
    await _say_error(ex, attempt, response, body, prepared)
    return False


def _another_way(ex: Exchange, status: int, body: bytes, prepared: Prepared, backend: BackendState) -> bool:
    """Whether the next attempt can do without what was refused, so that the client need not know of it."""
    if _is_late_system_refused(body, prepared):
        log.info("backend `%s` takes a system message only at the beginning", backend.name)
        backend.folds_system = True
        return True
    if status != 400 or ex.fields_refused or is_overflow(body):
        return False
    ex.fields_refused = True
    return True


def _is_late_system_refused(body: bytes, prepared: Prepared) -> bool:
    if prepared.translation is None or prepared.folded:
        return False
    late = any(message["role"] == "system" for message in prepared.translation.chat["messages"][1:])
    return late and is_system_refused(body)


class _TooLong(Exception):
    """The answer is longer than one may be held; `chunks` have come so far."""

    def __init__(self, chunks: list[bytes]) -> None:
        super().__init__(len(chunks))
        self.chunks = chunks


async def _read_whole(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse
) -> tuple[bytes, str | None]:
    """The body as far as it came, content-encoding taken off, and why it is not whole."""
    chunks: list[bytes] = []
    problem = None
    try:
        async for chunk in response.content.iter_any():
            if not chunks:
                first_byte(ex, attempt)
            chunks.append(chunk)
            ex.clock.touch()
            ex.reserve(len(chunk))
            attempt.response_bytes += len(chunk)
            if attempt.response_bytes > ex.limits.answer:
                raise _TooLong(chunks)
    except (aiohttp.ClientError, OSError) as error:
        problem = str(error) or type(error).__name__
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    attempt.response_digest = xxhash.xxh3_128_digest(body)
    if inflater := inflater_of(response.headers.get("content-encoding")):
        body, whole = inflated(inflater, body)
        problem = problem or (None if whole else "its compressed answer is not whole")
    return body, problem


async def _plain(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, prepared: Prepared
) -> None:
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong as long:
        attempt.captured = Captured(flags=["answer_too_large"])
        if prepared.translation:
            text = f"backend `{attempt.backend}` sent an answer too large to be translated"
            await fail(ex, attempt, Outcome.UPSTREAM_ERROR, text)
        else:
            await _pass_through(ex, attempt, response, long.chunks)
        return
    if problem:
        attempt.captured = Captured(flags=["cut"])
        attempt.raw_response = body[:KEPT]
        text = f"backend `{attempt.backend}` broke off in its answer: {problem}"
        await fail(ex, attempt, Outcome.UPSTREAM_CUT, text)
        return
    try:
        captured, shown = _captured(ex, attempt, body, prepared)
    except Unreadable as error:
        attempt.raw_response, attempt.phase = body[:KEPT], Phase.DONE
        text = f"backend `{attempt.backend}` sent an answer that cannot be read: {error}"
        await fail(ex, attempt, Outcome.UPSTREAM_ERROR, text)
        return
    attempt.captured = captured
    if reason := captured.abandoned:
        await abandoned(ex, attempt, reason)
        return
    await finish(ex, attempt, captured)
    shown = ex.unmapped(shown, attempt)
    headers = passed_on(response)
    if (prepared.translation and _streams(ex)) or prepared.whole:
        headers["content-type"] = "text/event-stream"
    ex.remember(attempt, 200, headers, shown)
    await send_whole(ex, 200, shown, headers)


def _captured(ex: Exchange, attempt: Attempt, body: bytes, prepared: Prepared) -> tuple[Captured, bytes]:
    """What a plain answer says, and what of it the client gets.

    Raises:
        Unreadable: not what this wire calls an answer.
    """
    wire = ex.call.wire
    if wire in known.TRANSLATED and not prepared.translation:
        return capture_native(wire, body), body
    engine, hide = Engine(attempt.engine or "text"), prepared.hide or SHOW_ALL
    captured, shown = capture_plain(engine, hide, body, ex.parse_prompt)
    if prepared.translation:
        shown = translated_answer(captured, shown, prepared.translation, ex.call.call_id, _streams(ex))
    elif prepared.whole:
        shown = as_chunks(shown, usage=ex.ask is not None and ex.ask.usage)
    return captured, shown


def _streams(ex: Exchange) -> bool:
    return ex.ask is not None and ex.ask.stream


async def _counted(ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse) -> None:
    """The number of ids in an answer that lists them."""
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong:
        body, problem = b"", "its list of ids is too long"
    count = counted(body) if response.status == 200 and not problem else None
    attempt.raw_response = body[:KEPT]
    if count is None:
        said = said_of(body, response.status if response.status >= 400 else 502)
        text = f"backend `{attempt.backend}` counts no tokens: {problem or said.message}"
        await fail(ex, attempt, Outcome.UPSTREAM_ERROR, text)
        return
    ex.clock.stop()
    attempt.outcome, attempt.phase, attempt.raw_response = Outcome.OK, Phase.DONE, count
    await commit(ex, attempt)
    await send_whole(ex, 200, count, {})


async def _error(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, prepared: Prepared
) -> None:
    """An error status of the engine: passed on, in a form that agents recognise."""
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong as long:
        await _pass_through(ex, attempt, response, long.chunks)
        return
    attempt.error = problem or body[:500].decode(errors="replace")
    attempt.raw_response = body[:KEPT]
    await _say_error(ex, attempt, response, body, prepared)


async def _say_error(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, body: bytes, prepared: Prepared
) -> None:
    ex.clock.stop()
    attempt.outcome, attempt.phase = Outcome.UPSTREAM_ERROR, Phase.DONE
    await commit(ex, attempt)
    if prepared.translation:
        # A redirect would lead the client past us, and other codes have no body.
        status = response.status if response.status >= 400 else 502
        said = said_of(body or b"the engine answered %d" % response.status, status)
        wire, headers = ex.call.wire, _of_errors(passed_on(response))
        body = error_in(wire, said.status, said.message, said.code)
        await send_whole(ex, client_status(wire, said.status), body, headers)
        return
    if response.status in (400, 413) and ex.call.wire != Wire.MESSAGES:
        body = overflow_in_openai_form(body)
    await send_whole(ex, response.status, body, passed_on(response))


def _of_errors(headers: dict[str, str]) -> dict[str, str]:
    """What of an engine's headers still holds for an error in another form."""
    return {name: value for name, value in headers.items() if name not in ("content-type", "location")}


async def _pass_through(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, held: Sequence[bytes] = ()
) -> None:
    """Bytes as they come, of which the first 64 KB are kept: of a path we do not know, or of an answer
    too long to be held, of which `held` has come already."""
    kept = bytearray()
    digest = xxhash.xxh3_128()
    problem = None
    if attempt.first_byte_ns is None:
        first_byte(ex, attempt)
    attempt.response_bytes = 0
    await begin(ex, response, streaming=False)
    try:
        async for chunk in _chunks(response, held):
            ex.clock.touch()
            digest.update(chunk)
            kept += chunk[: KEPT - len(kept)]
            attempt.response_bytes += len(chunk)
            await ex.send({"type": "http.response.body", "body": chunk, "more_body": True})
    except (aiohttp.ClientError, OSError) as error:
        problem = str(error) or type(error).__name__
    attempt.raw_response, attempt.response_digest = bytes(kept), digest.digest()
    if problem:
        text = f"backend `{attempt.backend}` broke off in its answer: {problem}"
        await fail(ex, attempt, Outcome.UPSTREAM_CUT, text)
        return
    ex.clock.stop()
    attempt.outcome = Outcome.UPSTREAM_ERROR if response.status >= 400 else Outcome.OK
    attempt.phase = Phase.DONE
    await commit(ex, attempt)
    await ex.send({"type": "http.response.body", "body": b""})


async def _chunks(response: aiohttp.ClientResponse, held: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in held:
        yield chunk
    async for chunk in response.content.iter_any():
        yield chunk


async def replay(ex: Exchange, attempt: Attempt, stored: Stored) -> None:
    """Send a stored answer again; the row says that nothing was generated."""
    ex.clock.stop()
    await commit(ex, attempt)
    await send_whole(ex, stored.status, stored.body, stored.headers)
