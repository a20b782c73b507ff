"""An engine with a small model, its control routes on a socket, and listeners to wait for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from transformers import PreTrainedModel

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.request import (
    Collected,
    Finish,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    Started,
    Token,
)
from gyre.elastic.engine.server import errors
from gyre.elastic.engine.server.control import ControlRoutes
from gyre.elastic.engine.server.kv import KVRoutes
from gyre.elastic.engine.server.running import listen, running, url_of
from gyre.elastic.engine.thread import EngineThread
from gyre.elastic.engine.weights.staged import digest_of
from gyre.proxy.errors import RequestError
from tests.engine.weights.models import loaded

TIMEOUT_S = 60
LONG = 100_000
"""More tokens than any test waits for."""
_NUMBERS = itertools.count()


@dataclass(slots=True)
class Heard(Collected):
    """What a request was told; other threads may wait for it."""

    _news: threading.Condition = field(default_factory=threading.Condition)

    def started(self, started: Started) -> None:
        Collected.started(self, started)

    def token(self, token: Token) -> bool:
        with self._news:
            self._news.notify_all()
            return Collected.token(self, token)

    def finished(self, finish: Finish) -> None:
        with self._news:
            self._news.notify_all()
            Collected.finished(self, finish)

    def wait_for_tokens(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.tokens) >= count or self.finish, TIMEOUT_S)
            assert len(self.tokens) >= count, self.finish

    def wait(self) -> Finish:
        with self._news:
            assert self._news.wait_for(lambda: self.finish, TIMEOUT_S)
            assert self.finish is not None
            return self.finish

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def reason(self) -> FinishReason:
        return self.wait().reason


def ask(prompt_ids: Sequence[int] = (1, 2, 3), **values: Any) -> GenerationRequest:
    values = {
        "request_id": f"r{next(_NUMBERS)}",
        "max_tokens": LONG,
        "sampling": SamplingParams(seed=next(_NUMBERS)),
        **values,
    }
    return GenerationRequest(prompt_ids=prompt_ids, **values)


@dataclass
class Control:
    """The engine, and its control calls as a client sees them."""

    engine: EngineThread
    client: httpx.Client
    model: PreTrainedModel

    def submit(self, *requests: GenerationRequest) -> list[Heard]:
        """Each a call of its own."""
        heard = [Heard() for _ in requests]
        for request, listener in zip(requests, heard, strict=True):
            self.engine.submit([(request, listener)]).result(TIMEOUT_S)
        return heard

    def steps(self) -> int:
        """How many steps there were, as the engine's own thread sees it."""
        return self.engine.call(lambda core: core.stats.steps).result(TIMEOUT_S)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        answer = self.client.post(path, json=body, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        return self.client.get(path).json()

    def refused(self, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        answer = self.client.post(path, json=body, params=query)
        return answer.status_code, answer.json()["error"]["message"]

    def publish(self, folder: Path, version: str | int, in_flight: str = "keep") -> Any:
        return self.post("/update_weights", update_of(folder, version, in_flight))


def update_of(folder: Path, version: str | int, in_flight: str = "keep") -> dict[str, Any]:
    return {"update_info": {"path": str(folder), "weight_version": version}, "in_flight": in_flight}


@contextmanager
def controlled(model: PreTrainedModel, **limits: int) -> Iterator[Control]:
    """The engine starts with version `0`."""
    limits = {"ctx": LONG * 2, **limits}
    core = Core(loaded(model), EngineLimits(**limits), version="0", digest=digest_of(model))
    engine = EngineThread(core)
    app = Starlette(
        routes=[*ControlRoutes(engine, core.model).routes, *KVRoutes(engine).routes],
        exception_handlers={RequestError: errors.refused},
    )
    engine.start()
    try:
        with (
            listen("127.0.0.1", 0) as listener,
            running(app, listener, lambda: None),
            # Of authorities there are none to read, which would take 25 ms.
            httpx.Client(
                base_url=url_of(listener), timeout=TIMEOUT_S, verify=False, trust_env=False
            ) as client,
        ):
            yield Control(engine, client, model)
    finally:
        engine.close()
