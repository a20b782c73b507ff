"""A full disk: open calls are answered, new ones are refused, nothing that was recorded is lost."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.proxy.calls import CallRecord, IntentRecord
from gyre.proxy.errors import LogError
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.record.journal import open_new
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.processes import wait_for
from tests.proxy.reading import content_of
from tests.proxy.running import RunningProxy

QUICK: dict[str, Any] = {"log.sync_s": 0.05, "log.durability": "off"}
"""The recorder looks that often whether there is room again."""


class Disk:
    """Opens segments. While it is full, writes to them fail as the kernel's own full device does."""

    def __init__(self) -> None:
        self._full = os.open("/dev/full", os.O_WRONLY)
        self._segments: dict[int, int] = {}
        """Descriptor of a segment -> a spare one of the same file."""
        self._is_full = False
        self._lock = threading.Lock()

    def open(self, path: Path) -> int:
        with self._lock:
            if self._is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            segment = open_new(path)
            self._segments[segment] = os.dup(segment)
            return segment

    def fill(self) -> None:
        with self._lock:
            self._is_full = True
            for segment in self._segments:
                os.dup2(self._full, segment)

    def empty(self) -> None:
        with self._lock:
            self._is_full = False

    def close(self) -> None:
        for descriptor in (self._full, *self._segments.values()):
            os.close(descriptor)


@pytest.fixture
def disk() -> Any:
    disk = Disk()
    yield disk
    disk.close()


def until(condition: Callable[[], bool]) -> None:
    FakeEngine().wait_until(lambda _: condition())


def call_ids(proxy: RunningProxy) -> list[str]:
    return [record.call_id for record in proxy.records() if isinstance(record, CallRecord)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_open_when_the_disk_fills_is_answered_and_counted(
    tmp_path: Path, disk: Disk, stream: bool
) -> None:
    engine = FakeEngine(script=Answer(text="x" * 40, delay=0.3))
    with (
        engine,
        RunningProxy(tmp_path, engine, opener=disk.open, **QUICK) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        before = proxy.chat()
        waiting = pool.submit(proxy.chat, stream=stream)
        engine.wait_until(lambda e: e.open_streams == 1)
        disk.fill()
        answer = waiting.result()
        assert call_ids(proxy) == [before.headers["x-gyre-call-id"]]
        assert (proxy.worker.recorder.rows, proxy.worker.recorder.unrecorded) == (1, 1)
    assert answer.status_code == 200
    assert content_of(answer) == "x" * 40 if stream else b"x" * 40 in answer.content


def test_new_calls_are_refused_and_told_why_until_there_is_room(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, opener=disk.open, **QUICK) as proxy:
        first = proxy.chat()
        disk.fill()
        proxy.chat()
        refused = [proxy.chat() for _ in range(20)]
        health = httpx.get(proxy.url + "/healthz")
        disk.empty()
        until(lambda: proxy.worker.recorder.problem is None)
        last = proxy.chat()
        recorded = call_ids(proxy)
        assert httpx.get(proxy.url + "/healthz").status_code == 200
    assert {answer.status_code for answer in refused} == {503}
    error = refused[0].json()["error"]
    assert error["code"] == "recording_failed"
    assert "No space left" in error["message"] and str(tmp_path) in error["message"]
    assert int(refused[0].headers["retry-after"]) > 0
    assert health.status_code == 503 and "No space left" in health.text
    assert last.status_code == 200 and len(engine.calls) == 3
    assert recorded == [first.headers["x-gyre-call-id"], last.headers["x-gyre-call-id"]]
    said = [record.getMessage() for record in caplog.records if record.name.endswith("recorder")]
    assert len(said) == 2 and "No space left" in said[0] and "recording again" in said[1]


def test_the_unrecorded_are_counted_on_the_metrics_page(tmp_path: Path, disk: Disk) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, opener=disk.open, **QUICK) as proxy:
        disk.fill()
        assert proxy.chat().status_code == 200
        page = httpx.get(proxy.url + "/metrics").text
    assert "gyre_record_dropped_total 1.0" in page.splitlines()


def test_a_call_that_is_open_over_the_whole_trouble_is_recorded_after_it(tmp_path: Path, disk: Disk) -> None:
    """Its intent, lost with the segment that could not be written, is in the new one too."""
    engine = FakeEngine(script=[Answer(delay=1), Answer()])
    with (
        engine,
        RunningProxy(tmp_path, engine, opener=disk.open, **QUICK) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(proxy.chat)
        engine.wait_until(lambda e: e.open_streams == 1)
        disk.fill()
        proxy.chat("other")
        assert proxy.worker.recorder.problem
        disk.empty()
        until(lambda: proxy.worker.recorder.problem is None)
        segment = max((tmp_path / "journal").iterdir())
        intents = [r.call_id for r in scan(segment, Damage()) if isinstance(r, IntentRecord)]
        answer = waiting.result()
        assert call_ids(proxy)[-1] == answer.headers["x-gyre-call-id"]
    assert intents == [answer.headers["x-gyre-call-id"]]


def test_later_calls_do_not_refer_to_what_was_not_recorded(tmp_path: Path, disk: Disk) -> None:
    """The prompt of the last call extends one that the log does not have."""
    one, two = [{"role": "user", "content": "one" * 900}], [{"role": "user", "content": "two"}]
    said = {"role": "assistant", "content": "ok"}
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, opener=disk.open, **QUICK) as proxy:
        proxy.chat(messages=one)
        disk.fill()
        proxy.chat(messages=[*one, said, *two])
        disk.empty()
        until(lambda: proxy.worker.recorder.problem is None)
        proxy.chat(messages=[*one, said, *two, said])
        first, last = [record for record in proxy.records() if isinstance(record, CallRecord)]
    assert last.parent_call_id == first.call_id
    stored = {message.body for message in [*first.new_messages, *last.new_messages]}
    assert any(b'"two"' in body for body in stored)


def test_a_disk_with_room_for_a_beginning_only_costs_no_descriptors(tmp_path: Path, disk: Disk) -> None:
    """The new segment can be opened, but the long intent of the open call does not fit."""
    held: list[socket.socket] = []

    def opener(path: Path) -> int:
        if not held:
            return disk.open(path)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        held.append(theirs)
        return ours.detach()

    slow = "/v1/" + "a" * 20_000
    engine = FakeEngine(routes={slow: Answer(body=b"{}", delay=3)})
    with (
        engine,
        RunningProxy(tmp_path, engine, opener=opener, **QUICK) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(proxy.post, proxy.url + slow)
        engine.wait_until(lambda e: e.open_streams == 1)
        held.append(socket.socket())
        disk.fill()
        open_before = len(os.listdir("/proc/self/fd"))
        # The first is answered, unless the recorder has just tried to rotate and knows already.
        assert {503} <= {proxy.chat().status_code for _ in range(30)} <= {200, 503}
        grown = len(os.listdir("/proc/self/fd")) - open_before - len(held)
        # Each new segment seems to be the end of the trouble, until the long intent does not fit.
        wait_for(lambda: proxy.worker.recorder.problem)
        assert waiting.result().status_code == 200
    for each in held:
        each.close()
    assert len(held) > 30 and grown < 10


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path, disk: Disk) -> None:
    disk.fill()
    with FakeEngine() as engine, pytest.raises(LogError, match="No space left"):
        RunningProxy(tmp_path, engine, opener=disk.open).__enter__()
