"""A streamed answer on its way to the client: event by event, the terminal one after the row is flushed."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

import aiohttp
import xxhash

from gyre.proxy.body import inflater_of
from gyre.proxy.calls import Outcome, Wire
from gyre.proxy.capture.profiles import Engine, Hidden
from gyre.proxy.capture.stream import DONE, StreamCapture
from gyre.proxy.log.record.attempt import Attempt
from gyre.proxy.outcome import KEPT, begin, commit, fail, finish, first_byte, passed_on, stopped
from gyre.proxy.sse import EventSplitter, EventTooLarge, event_of

if TYPE_CHECKING:
    from gyre.proxy.exchange import Exchange


async def stream(ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, hide: Hidden) -> None:
    """Bring events to the client as they come, and record what they said."""
    engine, chat, n = Engine(attempt.engine or "text"), ex.call.wire == Wire.CHAT, ex.ask.n if ex.ask else 1
    capture = StreamCapture(engine, hide, chat, n, ex.parse_prompt)
    splitter = EventSplitter(ex.limits.event)
    try:
        problem = await _relay_events(ex, attempt, response, capture, splitter)
    except asyncio.CancelledError:
        await stopped(ex, attempt, capture)
        return
    complete = capture.done or (problem is None and (capture.finished or capture.given_up))
    attempt.captured = capture.finish(complete)
    if capture.failed:
        attempt.error = capture.failed[:500].decode(errors="replace")
        ex.clock.stop()
        attempt.outcome = Outcome.UPSTREAM_ERROR
        await commit(ex, attempt)
    elif complete:
        await finish(ex, attempt, attempt.captured)
    else:
        why = problem or "the stream ended before the answer did"
        await fail(ex, attempt, Outcome.UPSTREAM_CUT, f"backend `{attempt.backend}` broke off: {why}")
        return
    end = event_of(DONE) if capture.done else b""
    ex.remember_stream(attempt, passed_on(response), end)
    await ex.send({"type": "http.response.body", "body": end})
    if not response.content.at_eof():
        await _drain(response)


async def _relay_events(
    ex: Exchange,
    attempt: Attempt,
    response: aiohttp.ClientResponse,
    capture: StreamCapture,
    splitter: EventSplitter,
) -> str | None:
    """Forward events until the terminal one or the end; returns what went wrong upstream."""
    held = 0
    digest = xxhash.xxh3_128()
    inflater = inflater_of(response.headers.get("content-encoding"))
    try:
        while not capture.done:
            chunk = await response.content.readany()
            if not chunk:
                break
            if attempt.first_byte_ns is None:
                first_byte(ex, attempt)
                await begin(ex, response, streaming=True)
            ex.clock.touch()
            attempt.response_bytes += len(chunk)
            digest.update(chunk)
            if inflater:
                chunk = inflater.decompress(chunk)
            data = _seen(capture, splitter, chunk)
            if splitter.size != held:
                ex.reserve(splitter.size - held)
                held = splitter.size
                if held > KEPT and ex.relay.budget.full:
                    capture.give_up()
                    data += splitter.rest()
            await _forward(ex, attempt, data)
        if rest := splitter.rest():
            # What came without its blank line still counts as an event.
            await _forward(ex, attempt, capture.forward(rest.rstrip(b"\r\n") + b"\n\n"))
    except (aiohttp.ClientError, OSError, zlib.error) as error:
        return str(error) or type(error).__name__
    finally:
        attempt.response_digest = digest.digest()
    return None


def _seen(capture: StreamCapture, splitter: EventSplitter, chunk: bytes) -> bytes:
    """What the client gets of a chunk, once capture has seen its events."""
    if capture.given_up:
        return chunk
    try:
        return b"".join([capture.forward(event) for event in splitter.feed(chunk)])
    except EventTooLarge as large:
        # Not events at all, or one beyond reason: the client gets the bytes, capture is over.
        seen = [*map(capture.forward, large.events), large.pending]
        capture.give_up()
        return b"".join(seen)


async def _forward(ex: Exchange, attempt: Attempt, data: bytes) -> None:
    if data:
        data = ex.unmapped(data, attempt)
        ex.keep(data)
        await ex.send({"type": "http.response.body", "body": data, "more_body": True})


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read past the terminal event, so that the connection can be used again."""
    try:
        await asyncio.wait_for(response.content.read(), 1.0)
    except (aiohttp.ClientError, OSError, TimeoutError):
        response.close()
