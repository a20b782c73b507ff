"""Each phase of a call has a limit of its own, and the row says which one fired."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.fake import FakeEngine, black_hole, refused_url
from tests.engines.script import Answer
from tests.proxy.reading import events_of, ids_of
from tests.proxy.running import RunningProxy

SHORT = 0.3
FAR: dict[str, Any] = {
    "timeouts.connect": 9.0,
    "timeouts.first_byte": 9.0,
    "timeouts.idle": 9.0,
    "timeouts.total": 9.0,
}
HANGING_ERROR = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\n{"


def limits(phase: str) -> dict[str, Any]:
    return FAR | {f"timeouts.{phase}": SHORT}


@pytest.mark.parametrize(
    ("phase", "stream", "script"),
    [
        ("first_byte", False, Answer(hang_after=0)),
        ("first_byte", True, Answer(hang_after=0)),
        ("idle", False, Answer(text="x" * 40, hang_after=1)),
        ("idle", True, Answer(text="x" * 40, hang_after=1)),
        ("total", False, Answer(hang_after=0)),
        ("total", False, Answer(text="x" * 40, hang_after=1)),
        ("total", True, Answer(text="x" * 400, gap=0.05)),
    ],
)
def test_the_limit_that_fires_ends_the_call_and_is_recorded(
    tmp_path: Path, phase: str, stream: bool, script: Answer
) -> None:
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine, **limits(phase)) as proxy:
        started = time.monotonic()
        answer = proxy.chat(stream=stream)
        took = time.monotonic() - started
        engine.wait_until(lambda e: e.open_streams == 0)
        (row,) = proxy.rows()
    begun = stream and script.hang_after != 0
    error = events_of(answer)[-1]["error"] if begun else answer.json()["error"]
    assert answer.status_code == (200 if begun else 504)
    assert error["code"] == "timeout" and phase in error["message"]
    assert (row.outcome, row.phase) == ("timeout", phase)
    assert SHORT <= took < SHORT + 2


def test_a_short_plain_answer_with_long_gaps_is_cut_by_no_limit(tmp_path: Path) -> None:
    script = Answer(text="abcdefgh", gap=0.2)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine, **limits("idle")) as proxy:
        answer = proxy.chat(stream=True)
        assert proxy.rows()[0].outcome == "ok"
    assert answer.content.endswith(b"[DONE]\n\n")


def test_what_came_before_a_limit_fired_is_kept(tmp_path: Path) -> None:
    script = Answer(text="x" * 40, hang_after=4)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine, **limits("idle")) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert b"[DONE]" not in answer.content
    assert ids_of(row.output) == script.output_ids[:12]
    assert row.capture_quality == "incomplete" and "cut" in row.capture_flags


def test_a_backend_that_never_accepts_reaches_the_connect_limit(tmp_path: Path) -> None:
    with black_hole() as url:
        backends = [{"url": url, "name": "hole", "profile": "text"}]
        flags = limits("connect") | {"limits.hold_s": 0.5}
        with RunningProxy(tmp_path, backends=backends, ready=False, **flags) as proxy:
            proxy.worker.router.backends["hole"].ready = True
            proxy.run(refresh(proxy))
            answer = proxy.chat()
            rows = proxy.rows(2)
    assert answer.status_code == 503 and "hole" in answer.json()["error"]["message"]
    assert [(row.outcome, row.phase) for row in rows] == [("timeout", "connect"), ("rejected", "hold")]
    assert [row.attempt for row in rows] == [0, 1]
    assert rows[1].held_s > 0.3


async def refresh(proxy: RunningProxy) -> None:
    proxy.worker.refresh()


def test_the_total_limit_ends_a_call_that_waits_for_a_backend(tmp_path: Path) -> None:
    flags = limits("total") | {"limits.hold_s": 9.0}
    with RunningProxy(tmp_path, refused_url(), ready=False, **flags) as proxy:
        answer = proxy.chat()
        (row,) = proxy.rows()
    assert answer.status_code == 504
    assert (row.outcome, row.phase) == ("timeout", "total")
    assert row.held_s >= SHORT - 0.05


def test_a_client_that_leaves_while_its_call_waits_is_recorded(tmp_path: Path) -> None:
    with RunningProxy(tmp_path, refused_url(), ready=False) as proxy:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(proxy.base() + "/chat/completions", json={"messages": []}, timeout=0.1)
        (row,) = proxy.rows()
        assert proxy.worker.metrics.holding == 0
    assert (row.outcome, row.phase) == ("client_gone", "hold")
    assert row.held_s > 0.05


def test_an_error_whose_body_never_comes_reaches_a_limit(tmp_path: Path) -> None:
    script = Answer(status=400, text="no", hang_after=1)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine, **limits("idle")) as proxy:
        answer = proxy.chat()
        rows = proxy.rows()
    assert answer.status_code == 504
    assert (rows[-1].outcome, rows[-1].phase) == ("timeout", "idle")


def test_a_path_that_is_passed_through_has_the_same_limits(tmp_path: Path) -> None:
    routes = {"/v1/other": Answer(body=b'{"a":1}', hang_after=1)}
    with FakeEngine(routes=routes) as engine, RunningProxy(tmp_path, engine, **limits("idle")) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(proxy.base() + "/other", json={})
        (row,) = proxy.rows()
    assert (row.wire, row.outcome, row.phase) == ("opaque", "timeout", "idle")
