"""The whole engine over HTTP: streamed completions put together again, and control calls beside them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.request import Span
from gyre.elastic.engine.server.app import create_app
from gyre.elastic.engine.server.running import listen, running, url_of
from gyre.elastic.engine.settings import EngineSettings
from gyre.elastic.engine.thread import EngineThread
from gyre.elastic.engine.weights.staged import digest_of
from tests.engine.weights.rig import update_of

Json = dict[str, Any]


@dataclass
class Answer:
    """A streamed completion, so far."""

    prompt_ids: list[int]
    id: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """Of each token."""
    kv_spans: list[Span] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    cached: int | None = None
    finish: str | None = None
    error: Json | None = None
    done: bool = False
    """The stream ended as it should."""

    def take(self, event: Json) -> None:
        self.error = event.get("error")
        self.id = event.get("id", self.id)
        self.digests |= event.get("metadata", {}).get("weight_digests", {})
        if usage := event.get("usage"):
            self.cached = usage["prompt_tokens_details"]["cached_tokens"]
        for choice in event.get("choices", []):
            self._take_choice(choice)

    def _take_choice(self, choice: Json) -> None:
        spans = [Span(**span) for span in choice.get("weight_versions", [])]
        for span in spans:
            assert span.start == len(self.versions)
            self.versions += [span.version] * (span.end - span.start)
        self.ids += choice.get("token_ids", [])
        if told := choice["logprobs"]:
            self.logprobs += told["token_logprobs"]
            self.sampling_logprobs += told["sampling_logprobs"]
        assert len(self.ids) == len(self.versions) == len(self.logprobs)
        self.finish = choice["finish_reason"] or self.finish
        self.kv_spans += [Span(**span) for span in choice.get("kv_versions", [])]

    @property
    def all_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.ids]


def ask(prompt_ids: Sequence[int], max_tokens: int, **fields: Any) -> Json:
    """A stream that ends at `max_tokens` and tells everything."""
    return {
        "prompt": list(prompt_ids),
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 0,
        "return_token_ids": True,
        **fields,
    }


@dataclass
class Client:
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any = None, **query: str) -> Any:
        async with self.session.post(path, json=body, params=query) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return orjson.loads(text)

    async def get(self, path: str) -> Any:
        async with self.session.get(path) as answer:
            assert answer.status == 200
            return orjson.loads(await answer.read())

    async def status(self, path: str, body: Any = None, data: bytes | None = None) -> tuple[int, Json]:
        blob = None if data is None else io.BytesIO(data)
        # A body that is refused by its length is not sent at all.
        async with self.session.post(path, json=body, data=blob, expect100=bool(data)) as answer:
            return answer.status, orjson.loads(await answer.read())

    async def bytes(self, path: str, body: Any) -> bytes:
        async with self.session.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.read()

    async def publish(self, folder: Path, version: str, in_flight: str = "keep") -> None:
        await self.post("/update_weights", update_of(folder, version, in_flight))

    async def import_kv(self, blob: bytes) -> Json:
        async with self.session.post("/kv/import", data=io.BytesIO(blob)) as answer:
            assert answer.status == 200, await answer.text()
            told: Json = await answer.json()
            return told

    async def complete(self, body: Json, into: Answer | None = None) -> Answer:
        """The stream to its end, which may be the engine's."""
        answer = into or Answer(body["prompt"])
        try:
            async with self.session.post("/v1/completions", json=body) as reply:
                if reply.status != 200:
                    answer.error = orjson.loads(await reply.read())["error"]
                    return answer
                async for line in reply.content:
                    _take_line(answer, line)
        except aiohttp.ClientError:
            pass
        return answer


def _take_line(answer: Answer, line: bytes) -> None:
    if line.startswith(b"data: "):
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            answer.done = True
        else:
            answer.take(orjson.loads(data))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, read_bufsize=1 << 20) as session:
        yield Client(session)


async def until(true: Callable[[], object]) -> None:
    """Look again until it is so."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


@contextmanager
def tiny_engine(**limits: int) -> Iterator[str]:
    """The URL of an engine with `tiny`, in threads of this process."""
    model = load_model("tiny")
    limits = {"ctx": 8192, "slots": 32, **limits}
    engine = EngineThread(Core(model, EngineLimits(**limits), digest=digest_of(model.model)))
    app = create_app(engine, model, EngineSettings(model="tiny", ctx=limits["ctx"]))
    engine.start()
    try:
        with listen("127.0.0.1", 0) as listener, running(app, listener, app.cut):
            yield url_of(listener)
    finally:
        engine.close()
