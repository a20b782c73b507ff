"""Keys go where they belong, and never to disk, to logs or to anyone else."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from gyre.proxy.errors import ConfigError
from gyre.proxy.settings import load_settings
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.running import RunningProxy

SECRET = "s3cr3t-0123456789"
SENT = {
    "authorization": f"Bearer {SECRET}-bearer",
    "x-api-key": f"{SECRET}-x-api-key",
    "cookie": f"session={SECRET}-cookie",
    "proxy-authorization": f"Basic {SECRET}-proxy",
    "api-key": f"{SECRET}-azure",
    "x-goog-api-key": f"{SECRET}-google",
}


def written(logs: Path) -> bytes:
    """Every byte below the log folder."""
    return b"".join(path.read_bytes() for path in logs.rglob("*") if path.is_file())


def said(caplog: pytest.LogCaptureFixture) -> str:
    """Everything in the logs but what the test's own client says."""
    ours = [record for record in caplog.records if not record.name.startswith("httpcore")]
    return "\n".join(f"{record.getMessage()} {record.exc_text} {record.args}" for record in ours)


@pytest.mark.parametrize(
    "script",
    [
        Answer(text="fine"),
        Answer(status=401, text="no such key"),
        Answer(body=b"garbage"),
        Answer(cut_after=0),
        Answer(raw=b"garbage\r\n\r\n"),
        Answer(headers={"set-cookie": f"id={SECRET}-set"}),
    ],
)
def test_the_clients_keys_never_reach_disk_or_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: Answer
) -> None:
    caplog.set_level(logging.DEBUG)
    routes = {"/v1/messages": script}
    with FakeEngine(script=script, routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        for stream in (False, True):
            proxy.chat(headers=SENT, stream=stream)
        proxy.chat(headers=SENT, messages=[])
        proxy.post(proxy.base() + "/messages", json={}, headers=SENT)
        proxy.post(proxy.base() + "/chat/completions", content=b"{", headers=SENT)
        proxy.post(proxy.url + "/x/../v1", json={}, headers=SENT)
        proxy.rows(5)
    assert SECRET.encode() not in written(tmp_path)
    assert SECRET not in said(caplog)


def test_the_clients_own_key_reaches_the_engine(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(headers=SENT)
        got = engine.calls[0].headers
    assert got["authorization"] == SENT["authorization"] and got["x-api-key"] == SENT["x-api-key"]
    assert "proxy-authorization" not in got


def test_a_backends_key_replaces_the_clients_and_goes_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ENGINE_KEY", f"{SECRET}-engine")
    with FakeEngine() as hosted, FakeEngine() as local:
        backends = [{"url": hosted.url, "key_env": "ENGINE_KEY"}, {"url": local.url}]
        with RunningProxy(tmp_path, backends=backends) as proxy:
            FakeEngine().wait_until(lambda _: all(b.ready for b in proxy.worker.router.backends.values()))
            for number in range(20):
                proxy.chat(f"e{number}", headers=SENT)
            httpx.get(proxy.base() + "/models", headers=SENT)
            status = httpx.get(proxy.url + "/gyre/v1/backends").text
            page = httpx.get(proxy.url + "/metrics").text
            rows = proxy.rows(20)
        assert {row.backend for row in rows} == {f"127.0.0.1:{engine.port}" for engine in (hosted, local)}
        # Probes show the key too.
        assert {r.headers.get("authorization") for r in hosted.requests} == {f"Bearer {SECRET}-engine"}
        assert not any("x-api-key" in request.headers for request in hosted.requests)
        assert all(call.headers["authorization"] == SENT["authorization"] for call in local.calls)
        assert f"{SECRET}-engine" not in str([request.headers for request in local.requests])
    assert SECRET.encode() not in written(tmp_path)
    assert SECRET not in said(caplog) + status + page


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer gyre-x-run"}, {"x-api-key": "gyre-x-run"}, {"x-gyre-execution": "run"}],
)
def test_a_key_that_only_names_an_execution_does_not_reach_the_engine(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.post(proxy.url + "/v1/chat/completions", json={"messages": []}, headers=headers)
        assert not set(headers) & set(engine.calls[0].headers)
        assert proxy.rows()[0].identity.execution_id == "run"


def test_the_proxys_token_reaches_neither_engine_nor_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("GYRE_PROXY_TOKEN", SECRET)
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        for headers in (
            {"x-gyre-token": SECRET},
            {"authorization": f"bearer {SECRET}"},
            {"x-api-key": SECRET},
        ):
            assert proxy.chat(headers=headers).status_code == 200
        assert SECRET not in str([request.headers for request in engine.requests])
        proxy.rows(3)
    assert SECRET.encode() not in written(tmp_path)
    assert SECRET not in said(caplog)


def test_an_address_with_a_password_is_refused_without_repeating_it(tmp_path: Path) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:1"
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"logs": str(tmp_path), "backends": [{"url": url}]})
    assert SECRET not in str(caught.value) + caught.value.hint and "key_env" in caught.value.hint
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        refused = proxy.post(proxy.url + "/gyre/v1/backends", json={"url": url, "name": "hosted"})
        assert refused.status_code in (400, 422) and SECRET not in refused.text
        assert list(proxy.worker.router.backends) == [f"127.0.0.1:{engine.port}"]
