"""HTTP to the engines: one shared aiohttp session per worker, probes, and llama.cpp's tokenizer."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence

import aiohttp
import msgspec
import numpy as np
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from gyre.proxy.calls import Sampling
from gyre.proxy.capture.profiles import Engine, probe_reply
from gyre.proxy.capture.reply import Ids, Settings
from gyre.proxy.identity import HEADER, KEY_PREFIX
from gyre.proxy.router import BackendState
from gyre.proxy.settings import Timeouts
from gyre.proxy.worker import Worker

log = logging.getLogger(__name__)
_PROBE_S = 5.0
_HOP = {
    b"host",
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"content-length",
    b"accept-encoding",
    b"expect",
    b"x-gyre-token",
    HEADER.encode(),
}
_KEYS = (b"authorization", b"x-api-key")
RawHeaders = Iterable[tuple[bytes, bytes]]


Body = Sequence[bytes | memoryview]
_LARGE = 1 << 16


class _Pieces(aiohttp.Payload):
    """A large body in pieces, so that the agent's own bytes are sent and not a copy of them."""

    _autoclose = True

    def __init__(self, pieces: Body) -> None:
        super().__init__(pieces)
        self._size = sum(len(piece) for piece in pieces)

    async def write(self, writer: AbstractStreamWriter) -> None:
        # The first write goes out with the headers, which copies it.
        first = memoryview(self._value[0])
        for piece in (first[:_LARGE], first[_LARGE:], *self._value[1:]):
            if piece:
                await writer.write(piece)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)


def _payload(body: Body) -> bytes | _Pieces | None:
    size = sum(len(piece) for piece in body)
    if size > _LARGE:
        return _Pieces(body)
    return b"".join(body) or None


class Upstream:
    """The way to all backends of one worker."""

    def __init__(self, timeouts: Timeouts, token: str | None) -> None:
        self._timeouts = timeouts
        self._token = token
        self._urls: dict[tuple[str, bytes], URL] = {}
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Content-Type", "Accept"),
            read_bufsize=1 << 18,
            max_line_size=1 << 16,
            max_field_size=1 << 16,
        )

    async def stop(self) -> None:
        if self._session:
            await self._session.close()

    async def send(
        self,
        backend: BackendState,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: Body,
        coded: bool = False,
        translated: bool = False,
    ) -> aiohttp.ClientResponse:
        """Send a request; returns when the answer's headers are there.

        `body` comes in pieces; `coded`: it still has the client's content-encoding; `translated`: it is
        not the client's own any more.

        Raises:
            aiohttp.ClientError: no answer; see `gyre.proxy.relay` for which kind may be retried.
        """
        assert self._session is not None
        return await self._session.request(
            method,
            self._url(backend, target),
            data=_payload(body),
            headers=self._headers(backend, [*_in_openai_form(headers)] if translated else headers, coded),
            allow_redirects=False,
        )

    def _url(self, backend: BackendState, target: bytes) -> URL:
        key = backend.settings.url, target
        url = self._urls.get(key)
        if url is None:
            url = URL(backend.settings.url + target.decode("latin-1"), encoded=True)
            if len(self._urls) < 1000:
                self._urls[key] = url
        return url

    def _headers(self, backend: BackendState, headers: RawHeaders, coded: bool) -> list[tuple[str, str]]:
        """The client's headers, less those of its connection to us; the backend's own key wins."""
        key = os.environ.get(backend.settings.key_env) if backend.settings.key_env else None
        out = [("accept-encoding", "identity")]
        for name, value in headers:
            if name in _HOP or (name == b"content-encoding" and not coded):
                continue
            if name in _KEYS and (key or self._is_ours(value)):
                continue
            out.append((name.decode("latin-1"), _text(value)))
        if key:
            anthropic = any(name == b"anthropic-version" for name, _ in headers)
            out.append(("x-api-key", key) if anthropic else ("authorization", f"Bearer {key}"))
        return out

    def _is_ours(self, value: bytes) -> bool:
        """Keys that name an execution, or let the client in here, are not the engine's business."""
        text = value.decode("latin-1").removeprefix("Bearer ").removeprefix("bearer ").strip()
        return text.startswith(KEY_PREFIX) or (self._token is not None and text == self._token)

    async def get(self, backend: BackendState, path: str) -> tuple[int, bytes]:
        assert self._session is not None
        url = self._url(backend, path.encode())
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        async with self._session.get(
            url, headers=self._headers(backend, (), False), timeout=timeout
        ) as response:
            return response.status, await response.read()

    async def tokenize(self, backend: BackendState, text: str) -> Ids | None:
        """llama.cpp's ids of a rendered prompt; None when it does not say."""
        body = msgspec.json.encode({"content": text, "add_special": True, "parse_special": True})
        url = self._url(backend, b"/tokenize")
        headers = [*self._headers(backend, (), False), ("content-type", "application/json")]
        reply: dict[str, list[int]] = {}
        try:
            reply = msgspec.json.decode(await self._post(url, body, headers), type=dict[str, list[int]])
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            log.warning("backend `%s` gives no token ids for its prompt: %s", backend.name, error)
            return None
        return np.array(reply.get("tokens", []), np.int32)

    async def apply_template(self, backend: BackendState, body: bytes) -> str | None:
        """llama.cpp's rendered prompt of a chat request; None when it does not say."""
        url = self._url(backend, b"/apply-template")
        headers = [*self._headers(backend, (), False), ("content-type", "application/json")]
        try:
            return msgspec.json.decode(await self._post(url, body, headers), type=_Rendered).prompt
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            log.warning("backend `%s` renders no prompt: %s", backend.name, error)
            return None

    async def _post(self, url: URL, body: bytes, headers: list[tuple[str, str]]) -> bytes:
        """A side request; once more when the pooled connection turns out to be dead.

        llama.cpp closes a connection after a stream without saying so.
        """
        try:
            return await self._post_once(url, body, headers)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._post_once(url, body, headers)

    async def _post_once(self, url: URL, body: bytes, headers: list[tuple[str, str]]) -> bytes:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=60)
        async with self._session.post(url, data=body, headers=headers, timeout=timeout) as response:
            return await response.read()


def _in_openai_form(headers: RawHeaders) -> RawHeaders:
    """Anthropic's headers mean nothing to chat/completions, and its key has another name there."""
    for name, value in headers:
        if name == b"x-api-key":
            yield b"authorization", b"Bearer " + value
        elif not name.startswith(b"anthropic-") and name != b"accept":
            yield name, value


def _text(value: bytes) -> str:
    """aiohttp sends text as UTF-8; values that are none become it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Prober:
    """Finds out what a backend is, and when one that failed is back. Idle while all are well."""

    def __init__(self, worker: Worker, upstream: Upstream) -> None:
        self._worker = worker
        self._upstream = upstream
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, backend: BackendState) -> None:
        """Probe `backend` until it answers."""
        running = self._tasks.get(backend.name)
        if running is None or running.done():
            self._tasks[backend.name] = asyncio.create_task(self._until_ready(backend))

    def failed(self, backend: BackendState, why: str) -> None:
        """A call could not reach it: take it out until a probe succeeds."""
        backend.failures += 1
        if backend.ready:
            log.warning("backend `%s` is down: %s", backend.name, why)
        backend.ready, backend.problem = False, why
        self._worker.refresh()
        self.watch(backend)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _until_ready(self, backend: BackendState) -> None:
        pause, warned = 0.1, backend.problem is not None
        while self._worker.router.backends.get(backend.name) is backend:
            why = await self._probe(backend)
            if why is None:
                backend.ready, backend.problem = True, None
                log.info("backend `%s` is up (%s)", backend.name, backend.engine)
                self._worker.refresh()
                return
            backend.problem = why
            if not warned:
                log.warning("backend `%s` does not answer: %s; calls wait for it", backend.name, why)
                warned = True
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 2.0)

    async def _probe(self, backend: BackendState) -> str | None:
        """None when it answers, else why not."""
        try:
            status, body = await self._upstream.get(backend, "/v1/models")
            if status >= 500:
                return f"`GET /v1/models` was answered {status}"
            profile = backend.settings.profile
            backend.engine = probe_reply(body) if profile == "auto" else Engine(profile)
            if backend.engine == Engine.LLAMACPP:
                backend.defaults = _defaults((await self._upstream.get(backend, "/props"))[1])
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return None


class _Rendered(msgspec.Struct):
    prompt: str


class _Props(msgspec.Struct):
    class _Generation(msgspec.Struct):
        params: Settings = msgspec.field(default_factory=Settings)

    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


def _defaults(props: bytes) -> Sampling:
    try:
        params = msgspec.json.decode(props, type=_Props).default_generation_settings.params
    except msgspec.DecodeError:
        return Sampling()
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repeat_penalty,
    )
