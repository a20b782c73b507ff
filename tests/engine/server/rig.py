"""The engine with `tiny` behind a real socket, in threads of the test's own process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.server.app import create_app
from gyre.elastic.engine.server.generation import Script
from gyre.elastic.engine.server.running import listen, running, url_of
from gyre.elastic.engine.settings import EngineSettings
from gyre.elastic.engine.thread import EngineThread

Json = dict[str, Any]
USER = [{"role": "user", "content": "Hello, who are you?"}]


@cache
def tiny() -> LoadedModel:
    return load_model("tiny")


@dataclass
class Running:
    """What a test asks; `engine` is there to pause it and to look inside."""

    client: httpx.Client
    engine: EngineThread
    model: LoadedModel
    url: str

    def post(self, path: str, body: Any = None, **fields: Any) -> httpx.Response:
        return self.client.post(path, json=fields if body is None else body)

    def chat(self, **fields: Any) -> Json:
        return whole(
            self.post("/v1/chat/completions", {"messages": USER, "max_tokens": 8, "seed": 1, **fields})
        )

    def complete(self, **fields: Any) -> Json:
        return whole(
            self.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 8, "seed": 1, **fields})
        )

    def stream(self, path: str = "/v1/chat/completions", **fields: Any) -> list[Json]:
        """The events of a stream that ends well."""
        body = {"messages": USER, "max_tokens": 8, "seed": 1, "stream": True, **fields}
        if path == "/v1/completions":
            body = {"prompt": "Once upon", **body}
        events = events_of(self.post(path, body).text)
        assert events[-1] == "[DONE]", events
        return [json.loads(event) for event in events[:-1]]

    def error(self, path: str, body: Any = None, **fields: Any) -> tuple[int, Json]:
        answer = self.post(path, body, **fields)
        return answer.status_code, answer.json()["error"]

    def wait_until_idle(self) -> None:
        """What was aborted is gone a step later."""
        deadline = time.monotonic() + 20
        while self.engine.stats.running or self.engine.stats.waiting:
            assert time.monotonic() < deadline, "the engine still works"
            time.sleep(0.005)

    def text(self, ids: list[int]) -> str:
        return str(self.model.tokenizer.decode(ids))

    def ids(self, text: str) -> list[int]:
        return list(self.model.tokenizer.encode(text, add_special_tokens=False))


def whole(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def events_of(text: str) -> list[str]:
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


@contextmanager
def run_engine(
    *,
    script: Script = lambda body: body.get("script"),
    splice: bool = True,
    model: LoadedModel | None = None,
    key: str | None = None,
    **limits: Any,
) -> Iterator[Running]:
    """`script` field of a chat request: the text that shall be answered."""
    model = model or tiny()
    limits = {"ctx": 4096, **limits}
    engine = EngineThread(Core(model, EngineLimits(**limits), version="7", digest="d7"))
    settings = EngineSettings(model="tiny", ctx=limits["ctx"], splice=splice, key=key)
    app = create_app(engine, model, settings, script=script)
    engine.start()
    try:
        with listen("127.0.0.1", 0) as listener, running(app, listener, app.cut):
            url = url_of(listener)
            # Of authorities there are none to read, which would take 25 ms.
            with httpx.Client(base_url=url, timeout=60, verify=False, trust_env=False) as client:
                yield Running(client, engine, model, url)
    finally:
        engine.close()
