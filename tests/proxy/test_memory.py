"""What the proxy holds is bounded, whatever engines, clients and bodies do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.raw import connection, head
from tests.proxy.running import RunningProxy
from tests.proxy.streams import chunk, sent

MB = 1 << 20
STREAM = {"model": "m", "messages": [], "stream": True}


def endless(count: int, size: int = 1 << 16) -> Iterator[bytes]:
    """The beginning of one event that never ends."""
    yield chunk({"content": "a"}) + b'data: {"x":"'
    part = b"x" * size
    for _ in range(count):
        yield part


def drained(proxy: RunningProxy, execution: str) -> int:
    """How many bytes a client gets of a stream, cut or not; it keeps none."""
    client, size = httpx.Client(verify=False, timeout=60), 0
    url = proxy.base(execution) + "/chat/completions"
    with client, suppress(httpx.RemoteProtocolError), client.stream("POST", url, json=STREAM) as answer:
        for chunk in answer.iter_raw():
            size += len(chunk)
    return size


@pytest.mark.parametrize("flags", [{"limits.event": 1 * MB}, {"limits.memory": 10 * MB}])
def test_streams_without_a_delimiter_are_passed_on_flagged_and_not_held(
    tmp_path: Path, flags: dict[str, Any]
) -> None:
    with (
        FakeEngine(script=lambda _: sent(endless(64))) as engine,
        RunningProxy(tmp_path, engine, **flags) as proxy,
    ):
        drained(proxy, "warm")
        before = psutil.Process().memory_info().rss
        with ThreadPoolExecutor(40) as pool:
            got = list(pool.map(lambda number: drained(proxy, f"e{number}"), range(40)))
        grown = psutil.Process().memory_info().rss - before
        rows = proxy.rows(41)[1:]
        assert proxy.relay.budget.used == 0
    assert all(size >= sum(map(len, endless(64))) for size in got)
    assert grown < 100 * MB
    too_large = [row for row in rows if "event_too_large" in row.capture_flags]
    assert all((row.outcome, row.capture_quality) == ("ok", "none") for row in too_large)
    # Those that ended while there was room for them are cut, as any stream without an end.
    assert all(row in too_large or row.outcome == "upstream_cut" for row in rows)
    assert len(too_large) == 40 if "limits.event" in flags else len(too_large) > 20


def test_what_unfinished_events_hold_stays_within_the_memory_limit(tmp_path: Path) -> None:
    """Each of 20 streams would hold 2 MB; all are open before one sends anything."""
    flags: dict[str, Any] = {"limits.memory": 10 * MB, "timeouts.idle": 30.0}
    engine = FakeEngine(script=lambda _: sent(endless(32), hang_after=33, delay=1))
    with engine, RunningProxy(tmp_path, engine, **flags) as proxy, ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(drained, proxy, f"e{number}") for number in range(20)]
        engine.wait_until(lambda e: sum(call.parts_sent for call in e.calls) == 20 * 33)
        assert proxy.relay.budget.used < 12 * MB
        engine.stop()
        assert all(future.result() > 0 for future in waiting)


def test_a_client_that_does_not_read_holds_back_its_engine(tmp_path: Path) -> None:
    part = chunk({"content": "x" * 50_000})
    body = b'{"messages":[],"stream":true}'
    engine = FakeEngine(script=sent([part] * 2000))
    with engine, RunningProxy(tmp_path, engine) as proxy, connection(proxy.url) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        before = psutil.Process().memory_info().rss
        sock.sendall(head("POST", "/v1/chat/completions", f"content-length: {len(body)}") + body)
        still(engine)
        assert psutil.Process().memory_info().rss - before < 20 * MB
        # Of 2,000. What is not held here is in buffers of sockets, which grow as the kernel likes.
        assert engine.calls[0].parts_sent < 1000


def still(engine: FakeEngine) -> None:
    """Until the engine has sent nothing for a while."""
    seen = [-1, -1]

    def unchanged(_: FakeEngine) -> bool:
        seen.append(engine.calls[0].parts_sent if engine.calls else -1)
        return seen[-1] > 0 and len(set(seen[-100:])) == 1 and len(seen) > 100

    engine.wait_until(unchanged, 10)


def test_bodies_beyond_the_memory_limit_wait_for_their_turn(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x" * 400_000}]
    script = Answer(delay=0.1)
    with FakeEngine(kind="text", script=script) as engine:
        with (
            RunningProxy(tmp_path, engine, **{"limits.memory": 1 * MB}) as proxy,
            ThreadPoolExecutor(8) as pool,
        ):
            answers = list(pool.map(lambda n: proxy.chat(f"e{n}", messages=messages), range(8)))
            assert proxy.relay.budget.used == 0
        assert engine.peak_open == 2
    assert [answer.status_code for answer in answers] == [200] * 8


def test_a_body_that_finds_no_room_in_time_is_refused(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x" * 800_000}]
    flags: dict[str, Any] = {"limits.memory": 1 * MB, "limits.hold_s": 0.3}
    with (
        FakeEngine(kind="text", script=Answer(delay=1)) as engine,
        RunningProxy(tmp_path, engine, **flags) as proxy,
    ):
        with ThreadPoolExecutor() as pool:
            first = pool.submit(proxy.chat, messages=messages)
            engine.wait_until(lambda e: e.open_streams == 1)
            refused = proxy.chat("e2", messages=messages)
            assert first.result().status_code == 200
        assert proxy.relay.budget.used == 0
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "proxy_overloaded")
    assert int(refused.headers["retry-after"]) > 0


def test_a_body_larger_than_the_memory_limit_passes_alone(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x" * 3 * MB}]
    with (
        FakeEngine(kind="text") as engine,
        RunningProxy(tmp_path, engine, **{"limits.memory": 1 * MB}) as proxy,
    ):
        assert proxy.chat(messages=messages).status_code == 200
