"""The end of a worker: what is open is finished and recorded, what is new is refused."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.reading import content_of
from tests.proxy.running import RunningProxy

STREAM = {"model": "m", "messages": [], "stream": True}


async def begin_stop(proxy: RunningProxy) -> asyncio.Task[None]:
    task = asyncio.create_task(proxy.relay.stop(seal=False))
    await asyncio.sleep(0)
    return task


async def finish(stopping: asyncio.Task[None]) -> None:
    await stopping


def test_a_graceful_stop_finishes_open_streams_and_refuses_new_calls(tmp_path: Path) -> None:
    with (
        FakeEngine(script=Answer(text="x" * 40, gap=0.03)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        with httpx.stream("POST", proxy.base() + "/chat/completions", json=STREAM) as answer:
            parts = answer.iter_raw()
            got = next(parts)
            stopping = proxy.run(begin_stop(proxy))
            refused = proxy.chat()
            got += b"".join(parts)
        proxy.run(finish(stopping))
        open_row, refused_row = sorted(proxy.rows(2), key=lambda row: row.outcome)
    assert content_of(got) == "x" * 40 and got.endswith(b"[DONE]\n\n")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) > 0
    assert (open_row.outcome, open_row.capture_quality) == ("ok", "exact")
    assert refused_row.outcome == "rejected"


def test_a_call_that_waits_for_a_backend_is_answered_before_the_end(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"limits.hold_s": 0.5, "shutdown_s": 5.0}
    engine = FakeEngine()
    with engine, RunningProxy(tmp_path, engine, **flags) as proxy, ThreadPoolExecutor() as pool:
        engine.stop()
        waiting = pool.submit(proxy.chat)
        FakeEngine().wait_until(lambda _: proxy.worker.metrics.holding == 1)
        proxy.run(finish(proxy.run(begin_stop(proxy))))
        assert waiting.result().status_code == 503
        assert [row.outcome for row in proxy.rows(2)] == ["upstream_error", "rejected"]
