"""A streamed answer on its way to the client: event by event, the terminal one after the row is flushed."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

import aiohttp
import xxhash

from gyre.proxy.body import inflater_of
from gyre.proxy.calls import Outcome, Wire
from gyre.proxy.capture.events import Events
from gyre.proxy.capture.native import NativeStream
from gyre.proxy.capture.profiles import Engine, Hidden
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.capture.translated import TranslatedStream
from gyre.proxy.log.record.attempt import Attempt
from gyre.proxy.outcome import KEPT, abandoned, begin, commit, fail, finish, first_byte, passed_on, stopped
from gyre.proxy.prepared import Prepared
from gyre.proxy.sse import EventSplitter, EventTooLarge
from gyre.proxy.wires import known

if TYPE_CHECKING:
    from gyre.proxy.exchange import Exchange


SHOW_ALL = Hidden(frozenset(), frozenset(), False, False)


async def stream(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, prepared: Prepared
) -> None:
    """Bring events to the client as they come, and record what they said."""
    capture = ex.events = _events(ex, attempt, prepared)
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
    elif reason := attempt.captured.abandoned:
        await abandoned(ex, attempt, reason)
        return
    elif complete:
        await finish(ex, attempt, attempt.captured)
    else:
        why = problem or "the stream ended before the answer did"
        await fail(ex, attempt, Outcome.UPSTREAM_CUT, f"backend `{attempt.backend}` broke off: {why}")
        return
    end = capture.end()
    ex.remember_stream(attempt, passed_on(response), end)
    await ex.send({"type": "http.response.body", "body": end})
    if not response.content.at_eof():
        await _drain(response)


def _events(ex: Exchange, attempt: Attempt, prepared: Prepared) -> Events:
    wire, engine = ex.call.wire, Engine(attempt.engine or "text")
    if wire in known.TRANSLATED and not prepared.translation:
        return NativeStream(wire)
    n = ex.ask.n if ex.ask else 1
    capture = StreamCapture(engine, prepared.hide or SHOW_ALL, wire != Wire.COMPLETIONS, n, ex.parse_prompt)
    if prepared.translation:
        return TranslatedStream(capture, prepared.translation.writer(), ex.call.call_id)
    return capture


async def _relay_events(
    ex: Exchange,
    attempt: Attempt,
    response: aiohttp.ClientResponse,
    capture: Events,
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
                    data += splitter.rest() if capture.passes_bytes else b""
            await _forward(ex, attempt, data)
        if rest := splitter.rest():
            # What came without its blank line still counts as an event.
            await _forward(ex, attempt, capture.forward(rest.rstrip(b"\r\n") + b"\n\n"))
    except (aiohttp.ClientError, OSError, zlib.error) as error:
        return str(error) or type(error).__name__
    finally:
        attempt.response_digest = digest.digest()
    return None


def _seen(capture: Events, splitter: EventSplitter, chunk: bytes) -> bytes:
    """What the client gets of a chunk, once capture has seen its events."""
    if capture.given_up:
        return chunk
    try:
        return b"".join([capture.forward(event) for event in splitter.feed(chunk)])
    except EventTooLarge as large:
        # Not events at all, or one beyond reason: the client gets the bytes, capture is over.
        seen = [*map(capture.forward, large.events), large.pending if capture.passes_bytes else b""]
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
