"""Several workers on one port, as real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gyre.proxy.log.reading.read import read_log
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.processes import ProxyProcess, Stream, accepts, end, listens_nowhere, wait_for

SLOW = Answer(text="a slow answer in pieces", gap=0.15)
"""About a second when streamed."""


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(script=lambda request: SLOW if request.json.get("stream") else Answer()) as engine:
        yield engine


@pytest.fixture
def proxy(tmp_path: Path, engine: FakeEngine) -> Iterator[ProxyProcess]:
    with ProxyProcess(tmp_path, engine.url, "--workers", "2") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, engine: FakeEngine) -> Iterator[ProxyProcess]:
    """For tests that leave it as they found it; the last one ends it."""
    with ProxyProcess(tmp_path_factory.mktemp("common"), engine.url, "--workers", "2") as proxy:
        both_workers_take_calls(proxy)
        yield proxy


def names_of_workers(proxy: ProxyProcess) -> set[str]:
    """Each call id ends with the name of the worker that took the call."""
    return {proxy.chat(f"e{n}").headers["x-gyre-call-id"][16:] for n in range(8)}


def both_workers_take_calls(proxy: ProxyProcess) -> None:
    seen: set[str] = set()

    def both() -> bool:
        seen.update(names_of_workers(proxy))
        return len(seen) == 2

    wait_for(both)


def post(proxy: ProxyProcess, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
    response = httpx.request(method, f"{proxy.url}/gyre/v1/{path}", json=body, timeout=30)
    answer: dict[str, Any] = response.raise_for_status().json()
    return answer


def test_every_worker_gives_the_same_answers(common: ProxyProcess, engine: FakeEngine) -> None:
    proxy = common
    post(proxy, "backends", {"url": engine.url, "name": "second", "version": "3"})
    post(proxy, "backends/second", {"draining": True}, "PATCH")
    post(proxy, "executions/e1", {"task": "t1", "pin": {"temperature": 0.5}}, "PUT")
    for path in ("status", "backends", "executions", "executions/e1"):
        answers = [proxy.get(f"/gyre/v1/{path}") for _ in range(12)]
        assert [answer for answer in answers if answer != answers[0]] == []
    assert {b["name"]: b["draining"] for b in proxy.get("/gyre/v1/backends")["backends"]}["second"]
    ended = [post(proxy, "executions/e1/events", {"event": "ended"})["attempt"] for _ in range(6)]
    assert ended == [0] * 6
    started = [post(proxy, "executions/e1/events", {"event": "started"})["attempt"] for _ in range(6)]
    assert started == [1] * 6
    assert proxy.metric("gyre_workers") == 2


def test_pinned_sampling_reaches_calls_of_every_worker(common: ProxyProcess, engine: FakeEngine) -> None:
    post(common, "executions/pinned", {"pin": {"temperature": 0.25}}, "PUT")
    before = len(engine.calls)
    names = {common.chat("pinned", temperature=1).headers["x-gyre-call-id"][16:] for _ in range(24)}
    assert len(names) == 2
    assert {call.json["temperature"] for call in engine.calls[before:]} == {0.25}


def test_a_worker_that_dies_is_replaced_and_nothing_is_forgotten(
    proxy: ProxyProcess, engine: FakeEngine
) -> None:
    both_workers_take_calls(proxy)
    post(proxy, "backends", {"url": engine.url, "name": "second"})
    post(proxy, "version", {"version": "7"}, "PUT")
    post(proxy, "executions/e1", {"task": "t1"}, "PUT")
    post(proxy, "executions/e1/events", {"event": "ended"})
    calls = proxy.metric("gyre_proxy_calls_total")
    before = proxy.workers()
    wait_for(lambda: proxy.metric("gyre_proxy_calls_total") == calls)
    for worker in before:
        worker.kill()
        worker.wait(10)
        wait_for(lambda: len(proxy.workers()) == 2)
        wait_for(lambda: accepts(proxy.port) and proxy.metric("gyre_workers") == 2)
    assert {worker.pid for worker in proxy.workers()}.isdisjoint(worker.pid for worker in before)
    assert proxy.metric("gyre_proxy_calls_total") == calls
    backends = proxy.get("/gyre/v1/backends")["backends"]
    assert [(b["name"], b["version"]) for b in backends][1] == ("second", "7")
    execution = proxy.get("/gyre/v1/executions/e1")
    assert (execution["task"], execution["attempt"], execution["ended"]) == ("t1", 0, True)
    assert proxy.chat("e1").status_code == 200
    assert proxy.get("/gyre/v1/executions/e1")["attempt"] == 1
    assert proxy.stderr.count("was ended by SIGKILL; starting another") == 2
    assert end(proxy) == 0
    assert list((proxy.logs / "journal").iterdir()) == []
    assert read_log(proxy.logs).calls.num_rows == calls + 1


def test_the_death_of_the_supervisor_ends_its_workers_and_frees_the_port(proxy: ProxyProcess) -> None:
    workers = proxy.workers()
    stream = Stream(proxy)
    proxy.process.kill()
    proxy.process.wait(10)
    wait_for(lambda: listens_nowhere(proxy.port), 3)
    stream.join(10)
    assert stream.text.endswith("data: [DONE]\n\n")
    assert psutil.wait_procs(workers, timeout=15)[1] == []


def test_a_supervisor_that_is_asked_to_end_finishes_open_streams(proxy: ProxyProcess) -> None:
    stream = Stream(proxy)
    proxy.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not accepts(proxy.port), 3)
    assert proxy.process.poll() is None
    assert proxy.process.wait(30) == 0
    stream.join(10)
    assert stream.text.endswith("data: [DONE]\n\n")
    assert not (proxy.logs / "proxy.json").exists()
    assert list((proxy.logs / "journal").iterdir()) == []
    assert read_log(proxy.logs).calls["outcome"].to_pylist() == ["ok"]
    assert "ERROR" not in proxy.stderr


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with (
        FakeEngine(script=Answer(text="never", hang_after=1)) as engine,
        ProxyProcess(tmp_path, engine.url, "--workers", "2") as proxy,
    ):
        workers = proxy.workers()
        hung = threading.Thread(target=ignore_disconnect, args=(proxy,))
        hung.start()
        engine.wait_until(lambda e: e.open_streams == 1)
        proxy.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not accepts(proxy.port), 3)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(5) == 128 + signal.SIGTERM
        assert psutil.wait_procs(workers, timeout=5)[1] == []
        hung.join(10)
        assert not (proxy.logs / "proxy.json").exists()


def ignore_disconnect(proxy: ProxyProcess) -> None:
    with contextlib.suppress(httpx.TransportError):
        proxy.chat(stream=True)


def test_no_setting_stands_on_a_workers_command_line(common: ProxyProcess, engine: FakeEngine) -> None:
    for worker in common.workers():
        assert engine.url not in " ".join(worker.cmdline())


def test_ctrl_c_reaches_the_whole_process_group_and_ends_gracefully(common: ProxyProcess) -> None:
    stream = Stream(common)
    os.killpg(common.process.pid, signal.SIGINT)
    assert common.process.wait(30) == 0
    stream.join(10)
    assert stream.text.endswith("data: [DONE]\n\n")
