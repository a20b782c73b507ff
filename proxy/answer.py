"""From the engine's answer to the client and the record.

Plain answers go out after capture; streams event by event, with the terminal event held back until the
row is flushed. Whatever happens - error, cut, timeout, a client that leaves - the attempt is recorded.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import aiohttp
import xxhash

from gyre.proxy.body import inflated, inflater_of
from gyre.proxy.calls import Outcome, Phase, Wire
from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.plain import Unreadable, capture_plain
from gyre.proxy.capture.profiles import Engine, Hidden
from gyre.proxy.capture.stream import DONE, StreamCapture
from gyre.proxy.log.record.attempt import Attempt
from gyre.proxy.replay import Stored
from gyre.proxy.replies import error_body, overflow_in_openai_form
from gyre.proxy.sse import EventSplitter, EventTooLarge, event_of

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
_KEPT = 1 << 16
_SHOW_NOTHING = Hidden(frozenset(), frozenset(), False, False)


async def deliver(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, hide: Hidden | None
) -> None:
    """Bring `response` to the client in the way its kind needs."""
    stream = response.headers.get("content-type", "").startswith("text/event-stream")
    try:
        if ex.ask is None:
            await _pass_through(ex, attempt, response)
        elif response.status != 200:
            await _error(ex, attempt, response)
        elif stream:
            await _stream(ex, attempt, response, hide or _SHOW_NOTHING)
        else:
            await _plain(ex, attempt, response, hide or _SHOW_NOTHING)
    except asyncio.CancelledError:
        await stopped(ex, attempt, None)


async def commit(ex: Exchange, attempt: Attempt) -> None:
    """Record the attempt; the client is answered whether or not the disk takes it."""
    call, worker = attempt.call, ex.worker
    backend = worker.router.backends.get(attempt.backend or "")
    attempt.version_changed = backend is not None and backend.version != attempt.version
    if attempt.last and worker.executions.get(call.identity.execution_id).ends > call.execution_attempt:
        call.flags.append("late")
    rows = await worker.recorder.commit(attempt)
    worker.metrics.count(attempt, rows)
    execution = worker.executions.get(call.identity.execution_id)
    execution.prompt_tokens += rows[0].prompt_tokens or 0
    execution.output_tokens += sum(len(row.output or b"") // 4 for row in rows)
    refused = 400 <= (attempt.status or 0) < 500
    if attempt.outcome not in (Outcome.OK, Outcome.CLIENT_GONE) and not refused:
        log.warning("call %s: %s (%s): %s", call.call_id, attempt.outcome, attempt.phase, attempt.error)


async def fail(ex: Exchange, attempt: Attempt, outcome: Outcome, text: str) -> None:
    """Record a failure and tell the client, in its stream if one has begun.

    Any other answer that has begun is left unfinished, which is how HTTP says that it was cut.
    """
    ex.clock.stop()
    attempt.outcome, attempt.error = outcome, text
    await commit(ex, attempt)
    status = 504 if outcome == Outcome.TIMEOUT else 502
    body = error_body(text, status, outcome.value)
    if not ex.begun:
        await send_whole(ex, status, body, {})
    elif ex.streaming:
        await ex.send({"type": "http.response.body", "body": event_of(body)})


async def stopped(ex: Exchange, attempt: Attempt, capture: StreamCapture | None) -> bool:
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


async def refused(ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse) -> bool:
    """Keep why an engine said no to a request that shall be made again; False when it was stopped."""
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong as long:
        body, problem = b"".join(long.chunks), None
    except asyncio.CancelledError:
        return await stopped(ex, attempt, None)
    attempt.raw_response = body[:_KEPT]
    attempt.error = problem or body[:500].decode(errors="replace")
    return True


async def send_whole(ex: Exchange, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    pairs = _pairs(headers)
    if "content-type" not in headers:
        pairs.append((b"content-type", b"application/json"))
    pairs.append((b"content-length", b"%d" % len(body)))
    pairs.append((b"x-gyre-call-id", ex.call.call_id.encode()))
    ex.begun = True
    await ex.send({"type": "http.response.start", "status": status, "headers": pairs})
    await ex.send({"type": "http.response.body", "body": body})


async def _begin(ex: Exchange, response: aiohttp.ClientResponse, *, streaming: bool) -> None:
    """The start of an answer whose length is not known; only one of events is decoded on its way."""
    headers = _passed_on(response)
    if not streaming and (coding := response.headers.get("content-encoding")):
        headers["content-encoding"] = coding
    pairs = [*_pairs(headers), (b"x-gyre-call-id", ex.call.call_id.encode())]
    ex.begun, ex.streaming = True, streaming
    await ex.send({"type": "http.response.start", "status": response.status, "headers": pairs})


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As bytes again: aiohttp keeps what is not UTF-8 as surrogates."""
    return [(n.encode(), v.encode("utf-8", "surrogateescape")) for n, v in headers.items()]


def _passed_on(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {n.lower(): v for n, v in response.headers.items() if n.lower() not in _NOT_PASSED_ON}


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
                _first_byte(ex, attempt)
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


def _first_byte(ex: Exchange, attempt: Attempt) -> None:
    attempt.first_byte_ns, attempt.phase = ex.now_ns(), Phase.IDLE
    ex.clock.enter(Phase.IDLE)


async def _plain(ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, hide: Hidden) -> None:
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong as long:
        attempt.captured = Captured(flags=["answer_too_large"])
        await _pass_through(ex, attempt, response, long.chunks)
        return
    if problem:
        attempt.captured = Captured(flags=["cut"])
        attempt.raw_response = body[:_KEPT]
        text = f"backend `{attempt.backend}` broke off in its answer: {problem}"
        await fail(ex, attempt, Outcome.UPSTREAM_CUT, text)
        return
    try:
        captured, shown = capture_plain(Engine(attempt.engine or "text"), hide, body, ex.parse_prompt)
    except Unreadable as error:
        attempt.raw_response, attempt.phase = body[:_KEPT], Phase.DONE
        text = f"backend `{attempt.backend}` sent an answer that cannot be read: {error}"
        await fail(ex, attempt, Outcome.UPSTREAM_ERROR, text)
        return
    attempt.captured = captured
    await _finish(ex, attempt, captured)
    shown = ex.unmapped(shown, attempt)
    headers = _passed_on(response)
    ex.remember(attempt, 200, headers, shown)
    await send_whole(ex, 200, shown, headers)


async def _finish(ex: Exchange, attempt: Attempt, captured: Captured) -> None:
    """A whole answer: complete its ids and record it."""
    attempt.outcome, attempt.phase = Outcome.OK, Phase.DONE
    backend = ex.worker.router.backends.get(attempt.backend or "")
    if captured.prompt_ids is None and captured.prompt_text is not None and backend is not None:
        captured.prompt_ids = await ex.relay.upstream.tokenize(backend, captured.prompt_text)
    ex.clock.stop()
    await commit(ex, attempt)


async def _stream(ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, hide: Hidden) -> None:
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
        await _finish(ex, attempt, attempt.captured)
    else:
        why = problem or "the stream ended before the answer did"
        await fail(ex, attempt, Outcome.UPSTREAM_CUT, f"backend `{attempt.backend}` broke off: {why}")
        return
    end = event_of(DONE) if capture.done else b""
    ex.remember_stream(attempt, _passed_on(response), end)
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
                _first_byte(ex, attempt)
                await _begin(ex, response, streaming=True)
            ex.clock.touch()
            attempt.response_bytes += len(chunk)
            digest.update(chunk)
            if inflater:
                chunk = inflater.decompress(chunk)
            data = _seen(capture, splitter, chunk)
            if splitter.size != held:
                ex.reserve(splitter.size - held)
                held = splitter.size
                if held > _KEPT and ex.relay.budget.full:
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


async def _error(ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse) -> None:
    """An error status of the engine: passed on, in a form that agents recognise."""
    try:
        body, problem = await _read_whole(ex, attempt, response)
    except _TooLong as long:
        await _pass_through(ex, attempt, response, long.chunks)
        return
    ex.clock.stop()
    attempt.outcome, attempt.phase = Outcome.UPSTREAM_ERROR, Phase.DONE
    attempt.error = problem or body[:500].decode(errors="replace")
    attempt.raw_response = body[:_KEPT]
    await commit(ex, attempt)
    if response.status in (400, 413):
        body = overflow_in_openai_form(body)
    await send_whole(ex, response.status, body, _passed_on(response))


async def _pass_through(
    ex: Exchange, attempt: Attempt, response: aiohttp.ClientResponse, held: Sequence[bytes] = ()
) -> None:
    """Bytes as they come, of which the first 64 KB are kept: of a path we do not know, or of an answer
    too long to be held, of which `held` has come already."""
    kept = bytearray()
    digest = xxhash.xxh3_128()
    problem = None
    if attempt.first_byte_ns is None:
        _first_byte(ex, attempt)
    attempt.response_bytes = 0
    await _begin(ex, response, streaming=False)
    try:
        async for chunk in _chunks(response, held):
            ex.clock.touch()
            digest.update(chunk)
            kept += chunk[: _KEPT - len(kept)]
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
