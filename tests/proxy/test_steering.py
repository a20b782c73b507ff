"""Agents reach an engine's answers, not its controls."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gyre.proxy.identity import execution_key
from gyre.proxy.log.live import TOKEN_ENV
from gyre.proxy.steering import ALWAYS, UNLESS_READ, steers
from tests.engines.fake import FakeEngine
from tests.engines.routes import Kind
from tests.proxy.raw import answer, connection, head
from tests.proxy.running import RunningProxy

DOC = Path(__file__).parents[2] / "docs" / "proxy.md"
STEERING = [
    ("POST", "/pause?mode=abort"),
    ("POST", "/x/e1/update_weights"),
    ("POST", "/x/e1/kv/import"),
    ("POST", "/x/e1/x/e2/resume"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/x/e1/v1/load_lora_adapter/"),
    ("POST", "/inference/v1/abort_requests"),
    ("POST", "/root/of/the/engine/sleep"),
    ("POST", "/PAUSE"),
    ("POST", "//pause//"),
    ("POST", "/%70ause"),
    ("POST", "/kv%2Fexport"),
    ("POST", "/pause%0a"),
    ("POST", "/v1/../pause"),
    ("POST", "/v1/%2e%2e/pause"),
    ("GET", "/flush_cache"),
    ("POST", "/slots/0?action=erase"),
    ("POST", "/lora-adapters"),
    ("POST", "/props"),
    ("DELETE", "/adapters/mine"),
]
OTHERS = [
    ("GET", "/is_paused"),
    ("GET", "/weight_info"),
    ("GET", "/slots"),
    ("GET", "/props"),
    ("GET", "/lora-adapters"),
    ("POST", "/open_session"),
    ("POST", "/tokenize"),
    ("POST", "/pauses"),
    ("POST", "/pause/other"),
    ("POST", "/v1/fine_tuning/jobs/7/pause"),
    ("GET", "/v1/models/sleep"),
    ("POST", "/v1/embeddings"),
    ("GET", "/"),
]


TOKEN = "t0ken"
KEY = execution_key("e1", TOKEN)
SAMPLING = [
    ("POST", "/x/e1/generate"),
    ("PUT", "/x/e1/generate"),
    ("POST", "/x/e1/v1/generate?stream=true"),
    ("POST", "/x/e1/completion"),
    ("POST", "/x/e1/inference/v1/generate"),
    ("POST", "/x/e1/v1/embeddings"),
    ("POST", "/generate"),
]


def send(proxy: RunningProxy, method: str, path: str, *headers: str) -> tuple[int, bytes]:
    """As it is written: HTTP libraries would tidy the path up."""
    with connection(proxy.url) as sock:
        sock.sendall(head(method, path, "content-length: 2", "connection: close", *headers) + b"{}")
        return answer(sock)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "text"])
def test_a_route_that_steers_an_engine_is_refused_and_recorded(tmp_path: Path, kind: Kind) -> None:
    with FakeEngine(kind=kind) as engine, RunningProxy(tmp_path, engine) as proxy:
        before = len(engine.requests)
        answers = [send(proxy, *request) for request in STEERING]
        rows = proxy.rows(len(STEERING))
        assert [request.path for request in engine.requests[before:]] == []
    assert [status for status, _ in answers] == [403] * len(STEERING)
    assert all(b'"code":"steering_route"' in body and b"does not pass" in body for _, body in answers)
    assert {(row.outcome, row.wire, row.http_status) for row in rows} == {("rejected", "opaque", 403)}


def test_every_other_path_still_reaches_the_engine(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        before = len(engine.requests)
        statuses = [send(proxy, *request)[0] for request in OTHERS]
        reached = [(request.method, request.path) for request in engine.requests[before:]]
    assert reached == OTHERS
    assert 403 not in statuses


def test_the_key_of_an_execution_opens_no_way_to_sample_that_is_not_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    with FakeEngine(kind="sglang") as engine, RunningProxy(tmp_path, engine) as proxy:
        before = len(engine.requests)
        answers = [send(proxy, *request, f"authorization: Bearer {KEY}") for request in SAMPLING]
        rows = proxy.rows(len(SAMPLING))
        assert engine.requests[before:] == []
        for method, path in (("GET", "/x/e1/v1/models"), ("GET", "/x/e1/get_model_info")):
            assert send(proxy, method, path, f"x-api-key: {KEY}")[0] not in (401, 403)
        assert proxy.chat("e1", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        assert send(proxy, "POST", "/x/e1/pause", f"x-api-key: {KEY}")[1].count(b"steering_route") == 1
    assert [status for status, _ in answers] == [403] * len(SAMPLING)
    assert {row.outcome for row in rows} == {"rejected"}
    for _, body in answers:
        error = json.loads(body.partition(b"\r\n\r\n")[2] or body)["error"]
        assert error["code"] == "unknown_route" and "`chat/completions`" in error["message"]


def test_the_token_opens_them_and_without_a_token_so_does_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path / "a", engine) as proxy:
        shown = f"authorization: Bearer {execution_key('e1', None)}"
        assert 403 not in [send(proxy, *request, shown)[0] for request in SAMPLING]
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    with FakeEngine() as engine, RunningProxy(tmp_path / "b", engine) as proxy:
        before = len(engine.requests)
        statuses = [send(proxy, *request, f"x-gyre-token: {TOKEN}")[0] for request in SAMPLING]
        assert len(engine.requests) - before == len(SAMPLING) and not {401, 403} & set(statuses)


def test_the_documentation_lists_the_routes() -> None:
    always, _, unless_read = DOC.read_text().partition("They are ")[2].partition("unless it is only read")
    assert set(re.findall(r"`/([^`]+)`", always)) == ALWAYS
    assert set(re.findall(r"`/([^`]+)`", unless_read)) == UNLESS_READ


@pytest.mark.parametrize("route", sorted(ALWAYS | UNLESS_READ))
def test_each_of_them_is_refused_with_v1_and_without(route: str) -> None:
    path = route.replace("*", "3")
    for prefix in ("/", "/v1/", "/engine/"):
        assert steers("POST", prefix + path)
        assert steers("GET", prefix + path) == (route in ALWAYS)
