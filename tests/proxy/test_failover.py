"""Which backend serves a call, what is tried again, and what never is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.proxy.calls import CallRecord
from gyre.proxy.commands import AddBackend, Command, DrainBackend, RemoveBackend
from gyre.proxy.router import Router
from gyre.proxy.settings import Backend
from tests.engines.fake import FakeEngine, refused_url
from tests.engines.script import Answer
from tests.proxy.raw import HastyEngine
from tests.proxy.running import RunningProxy, until_cut


def apply(proxy: RunningProxy, command: Command) -> None:
    async def work() -> None:
        proxy.worker.apply(command)

    proxy.run(work())


def attempts(rows: list[CallRecord]) -> list[tuple[int, str, int | None]]:
    return [(row.attempt, row.outcome, row.http_status) for row in rows]


def owned_by(url: str, urls: list[str], count: int = 200) -> str:
    """An execution whose first choice of backend is `url`."""
    router = Router([Backend(url=each, name=each.removeprefix("http://")) for each in urls])
    for backend in router.backends.values():
        backend.ready = True
    names = (f"e{number}" for number in range(count))
    return next(n for n in names if (picked := router.pick(n)) and picked.settings.url == url)


def test_a_dead_backend_costs_nothing_but_a_row(tmp_path: Path) -> None:
    with FakeEngine() as dying, FakeEngine() as engine, RunningProxy(tmp_path, dying, engine) as proxy:
        until_ready(proxy, 2)
        execution = owned_by(dying.url, [dying.url, engine.url])
        dying.stop()
        answer = proxy.chat(execution)
        rows = proxy.rows(2)
        assert proxy.chat(execution).status_code == 200
    assert answer.status_code == 200
    assert attempts(rows) == [(0, "upstream_error", None), (1, "ok", 200)]
    assert rows[0].phase == "connect" and rows[0].call_id == rows[1].call_id
    assert len(engine.calls) == 2


def until_ready(proxy: RunningProxy, count: int) -> None:
    """Until so many backends have answered their probe."""
    wait_for(lambda: sum(b.ready for b in proxy.worker.router.backends.values()) >= count)


def wait_for(condition: Callable[[], bool]) -> None:
    FakeEngine().wait_until(lambda _: condition())


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_backend_that_is_not_there_for_us_is_passed_by(tmp_path: Path, status: int) -> None:
    busy = FakeEngine(script=Answer(status=status, text="loading"))
    with busy, FakeEngine() as engine, RunningProxy(tmp_path, busy, engine) as proxy:
        until_ready(proxy, 2)
        answer = proxy.chat(owned_by(busy.url, [busy.url, engine.url]))
        rows = proxy.rows(2)
    assert answer.status_code == 200
    assert attempts(rows) == [(0, "upstream_error", status), (1, "ok", 200)]
    assert rows[0].request is None and rows[1].request is not None


@pytest.mark.parametrize("status", [429, 500, 529])
def test_what_another_backend_could_not_mend_goes_to_the_client(tmp_path: Path, status: int) -> None:
    script = Answer(status=status, text="no")
    with FakeEngine(script=script) as one, FakeEngine(script=script) as two:
        with RunningProxy(tmp_path, one, two) as proxy:
            until_ready(proxy, 2)
            answer = proxy.chat()
            assert attempts(proxy.rows()) == [(0, "upstream_error", status)]
        assert (answer.status_code, len(one.calls) + len(two.calls)) == (status, 1)


def test_a_503_of_the_only_backend_goes_to_the_client(tmp_path: Path) -> None:
    with (
        FakeEngine(script=Answer(status=503, text="loading")) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        answer = proxy.chat()
        assert attempts(proxy.rows()) == [(0, "upstream_error", 503)]
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "loading")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [Answer(text="x" * 40, cut_after=1), Answer(text="x" * 40, cut_bytes=3)])
def test_nothing_is_sent_again_once_a_byte_of_output_existed(
    tmp_path: Path, script: Answer, stream: bool
) -> None:
    with FakeEngine(script=script) as one, FakeEngine(script=script) as two:
        with RunningProxy(tmp_path, one, two) as proxy:
            until_ready(proxy, 2)
            came, broken = until_cut(proxy, stream=stream)
            (row,) = proxy.rows()
        assert len(one.calls) + len(two.calls) == 1
    assert (row.attempt, row.outcome) == (0, "upstream_cut")
    assert broken or b"upstream_cut" in came


def test_nothing_is_sent_again_after_a_first_byte_timeout(tmp_path: Path) -> None:
    script = Answer(hang_after=0)
    with FakeEngine(script=script) as one, FakeEngine(script=script) as two:
        with RunningProxy(tmp_path, one, two, **{"timeouts.first_byte": 0.3}) as proxy:
            until_ready(proxy, 2)
            assert proxy.chat().status_code == 504
        assert len(one.calls) + len(two.calls) == 1


def test_a_pooled_connection_that_died_in_a_pause_shows_no_error(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.chat().status_code == 200
        for _ in range(5):
            engine.drop_idle()
            engine.wait_until(lambda e: not e.connections)
            assert proxy.chat().status_code == 200
        rows = proxy.rows(6)
    assert [row.outcome for row in rows if row.http_status == 200] == ["ok"] * 6
    assert all(row.capture_quality == "exact" for row in rows if row.outcome == "ok")


def test_a_connection_that_dies_as_the_request_comes_is_tried_once_more(tmp_path: Path) -> None:
    script = [Answer(), Answer(cut_after=0), Answer()]
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        assert [proxy.chat().status_code for _ in range(2)] == [200, 200]
        rows = proxy.rows(3)
    assert attempts(rows) == [(0, "ok", 200), (0, "upstream_error", None), (1, "ok", 200)]
    assert len(engine.calls) == 3


@pytest.mark.parametrize("size", [100, 8_000_000])
def test_an_engine_that_closes_while_the_body_still_goes_out_is_named(tmp_path: Path, size: int) -> None:
    messages = [{"role": "user", "content": "x" * size}]
    with HastyEngine(b"") as engine, RunningProxy(tmp_path, engine.url) as proxy:
        answer = proxy.chat(messages=messages)
        rows = proxy.rows(3)
    assert (
        answer.status_code == 502 and engine.url.removeprefix("http://") in answer.json()["error"]["message"]
    )
    assert engine.calls == 3 and [(row.attempt, row.phase) for row in rows] == [
        *((0, "first_byte"), (1, "first_byte"), (2, "first_byte"))
    ]


def test_an_answer_after_which_the_engine_closes_is_passed_on(tmp_path: Path) -> None:
    said = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    with HastyEngine(said) as engine, RunningProxy(tmp_path, engine.url) as proxy:
        answer = proxy.chat()
        assert attempts(proxy.rows()) == [(0, "upstream_error", 413)]
    assert (answer.status_code, answer.content, engine.calls) == (413, b"{}", 1)


def test_an_engine_that_always_hangs_up_is_named(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(cut_after=0)) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat()
        rows = proxy.rows(3)
    assert answer.status_code == 502 and f"127.0.0.1:{engine.port}" in answer.json()["error"]["message"]
    assert [row.attempt for row in rows] == [0, 1, 2]
    assert len(engine.calls) == 3


def test_a_call_that_a_dying_engine_still_took_waits_for_its_return(tmp_path: Path) -> None:
    with (
        HastyEngine(b"", lasts=2) as dying,
        RunningProxy(tmp_path, dying.url) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(proxy.chat)
        wait_for(lambda: proxy.worker.metrics.holding == 1)
        with FakeEngine(port=int(dying.url.rpartition(":")[2])):
            assert waiting.result().status_code == 200
        rows = proxy.rows(3)
    assert attempts(rows) == [(0, "upstream_error", None), (1, "upstream_error", None), (2, "ok", 200)]


def test_executions_stay_with_their_backend_and_spread(tmp_path: Path) -> None:
    with FakeEngine() as one, FakeEngine() as two, RunningProxy(tmp_path, one, two) as proxy:
        until_ready(proxy, 2)
        for _ in range(3):
            for number in range(12):
                proxy.chat(f"e{number}")
        rows = proxy.rows(36)
    served: dict[str, set[str | None]] = {}
    for row in rows:
        served.setdefault(row.identity.execution_id, set()).add(row.backend)
    assert all(len(backends) == 1 for backends in served.values())
    assert len({backend for backends in served.values() for backend in backends}) == 2


def test_an_overloaded_backend_gets_no_more_than_its_share(tmp_path: Path) -> None:
    script = Answer(text="x", delay=0.4)
    with FakeEngine(script=script) as one, FakeEngine(script=script) as two:
        with RunningProxy(tmp_path, one, two) as proxy, ThreadPoolExecutor(8) as pool:
            until_ready(proxy, 2)
            list(pool.map(lambda _: proxy.chat("e1"), range(8)))
        assert one.peak_open + two.peak_open == 8
        assert max(one.peak_open, two.peak_open) <= 5


def test_a_drained_backend_finishes_what_is_open_and_gets_nothing_new(tmp_path: Path) -> None:
    script = Answer(text="x" * 40, gap=0.02)
    with FakeEngine(script=script) as one, FakeEngine(script=script) as two:
        with RunningProxy(tmp_path, one, two) as proxy:
            until_ready(proxy, 2)
            execution = owned_by(one.url, [one.url, two.url])
            with stream(proxy, execution) as answer:
                parts = answer.iter_raw()
                got = next(parts)
                apply(proxy, DrainBackend(f"127.0.0.1:{one.port}", True))
                assert proxy.chat(execution).status_code == 200
                got += b"".join(parts)
            apply(proxy, DrainBackend(f"127.0.0.1:{one.port}", False))
            proxy.chat(execution)
        assert got.endswith(b"[DONE]\n\n")
        assert (len(one.calls), len(two.calls)) == (2, 1)


def stream(proxy: RunningProxy, execution: str) -> Any:
    body = {"model": "m", "messages": [], "stream": True}
    return httpx.stream("POST", proxy.base(execution) + "/chat/completions", json=body)


def test_a_removed_backend_finishes_what_is_open(tmp_path: Path) -> None:
    with (
        FakeEngine(script=Answer(text="x" * 40, gap=0.02)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        with stream(proxy, "e1") as answer:
            parts = answer.iter_raw()
            got = next(parts)
            apply(proxy, RemoveBackend(f"127.0.0.1:{engine.port}"))
            got += b"".join(parts)
        (row,) = proxy.rows()
    assert got.endswith(b"[DONE]\n\n") and (row.outcome, row.capture_quality) == ("ok", "exact")


def test_a_call_waits_for_a_backend_that_comes_later(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, refused_url(), ready=False) as proxy:
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(proxy.chat, stream=flag) for flag in (False, True)]
            wait_for(lambda: proxy.worker.metrics.holding == 2)
            apply(proxy, AddBackend(Backend(url=engine.url, name="late")))
            assert [future.result().status_code for future in waiting] == [200, 200]
        rows = proxy.rows(2)
    assert [(row.outcome, row.backend, row.capture_quality) for row in rows] == [("ok", "late", "exact")] * 2
    assert all(row.held_s > 0 for row in rows)


def test_a_backend_that_comes_back_serves_again(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        engine.stop()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(proxy.chat)
            wait_for(lambda: proxy.worker.metrics.holding == 1)
            with FakeEngine(port=engine.port):
                assert waiting.result().status_code == 200
        rows = proxy.rows(2)
    assert attempts(rows) == [(0, "upstream_error", None), (1, "ok", 200)]
    assert rows[1].held_s > 0


def test_a_call_that_no_backend_takes_in_time_is_told_why(tmp_path: Path) -> None:
    url = refused_url()
    with RunningProxy(tmp_path, url, ready=False, **{"limits.hold_s": 0.4}) as proxy:
        wait_for(lambda: bool(proxy.worker.router.backends[url.removeprefix("http://")].problem))
        answer = proxy.chat()
        (row,) = proxy.rows()
    message = answer.json()["error"]["message"]
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert url.removeprefix("http://") in message and "onnect" in message
    assert (row.outcome, row.phase, row.http_status, row.backend) == ("rejected", "hold", 503, None)
    assert 0.3 < row.held_s < 2


def test_more_calls_than_may_wait_are_refused_at_once(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"limits.hold_calls": 1, "limits.hold_s": 1.0}
    with RunningProxy(tmp_path, refused_url(), ready=False, **flags) as proxy:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(proxy.chat)
            wait_for(lambda: proxy.worker.metrics.holding == 1)
            assert proxy.chat().elapsed.total_seconds() < 0.9
            assert waiting.result().status_code == 503
        assert sorted(row.held_s > 0.5 for row in proxy.rows(2)) == [False, True]


def test_new_executions_ask_the_engine_nothing_extra(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        before = Counter(request.route for request in engine.requests)
        with httpx.Client() as client:
            for number in range(200):
                url = f"{proxy.base(f'e{number}')}/chat/completions"
                assert client.post(url, json={"messages": []}).status_code == 200
        after = Counter(request.route for request in engine.requests)
    assert after - before == Counter({"/v1/chat/completions": 200})
