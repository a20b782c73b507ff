"""Who is calling: every signal, which of them wins, and names that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.errors import ConfigError, RequestError
from gyre.proxy.identity import checked_name, identify, split_path
from gyre.proxy.settings import load_settings
from tests.engines.fake import FakeEngine
from tests.proxy.raw import answer, connection, head
from tests.proxy.running import RunningProxy

BODY = {"model": "m", "messages": []}
LONGEST = "a" * 128


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/x/run-1/v1", {}, ("run-1", "url")),
        (f"/x/{LONGEST}/v1", {}, (LONGEST, "url")),
        ("/v1", {"authorization": "Bearer gyre-x-run-2"}, ("run-2", "key")),
        ("/v1", {"x-api-key": "gyre-x-run-2"}, ("run-2", "key")),
        ("/v1", {"x-gyre-execution": "run-3"}, ("run-3", "header")),
        ("/v1", {"x-claude-code-session-id": "0b4a-11"}, ("0b4a-11", "session")),
        ("/v1", {"session-id": "s-1", "authorization": "Bearer sk-1"}, ("s-1", "session")),
        ("/x/run-1/v1", {"x-session-id": "ses_1"}, ("run-1", "url")),
    ],
)
def test_the_strongest_signal_names_the_execution(
    tmp_path: Path, path: str, headers: dict[str, str], expected: tuple[str, str]
) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        url = proxy.url + path + "/chat/completions"
        assert proxy.post(url, json=BODY, headers=headers).status_code == 200
        (row,) = proxy.rows()
        assert engine.calls[0].path == "/v1/chat/completions"
    assert (row.identity.execution_id, row.identity.execution_source) == expected
    assert row.identity.flags == [] and row.path == "/v1/chat/completions"


BAD = [
    "..",
    ".",
    "",
    "-a",
    ".hidden",
    "a b",
    "é",
    "a" * 129,
    "a\\b",
    "a:b",
    "a%2fb",
    "%2e%2e",
    "%61",
]


@pytest.mark.parametrize("name", BAD)
def test_a_name_in_the_url_from_which_a_path_could_be_formed_is_refused(tmp_path: Path, name: str) -> None:
    target = f"/x/{name}/v1/chat/completions".replace(" ", "%20").replace("é", "%c3%a9")
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        with connection(proxy.url) as sock:
            sock.sendall(head("POST", target, "content-length: 2") + b"{}")
            status, body = answer(sock)
        (row,) = proxy.rows()
        assert len(engine.requests) == 1
    assert status == 400 and b"invalid_execution_name" in body
    assert (row.outcome, row.http_status) == ("rejected", 400)


def test_dots_after_the_name_are_the_engines_business(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy, connection(proxy.url) as sock:
        sock.sendall(
            head("POST", "/x/a/../b/v1/chat/completions", "content-length: 2", "connection: close") + b"{}"
        )
        status, _ = answer(sock)
        (row,) = proxy.rows()
        assert engine.requests[1].path == "/../b/v1/chat/completions"
    assert (status, row.identity.execution_id, row.wire) == (404, "a", "opaque")


@pytest.mark.parametrize("name", ["..", "a/b", "a" * 129, "", "a b"])
@pytest.mark.parametrize("header", ["x-gyre-execution", "authorization", "x-api-key"])
def test_a_bad_name_in_a_header_is_refused_and_said_where_it_came_from(
    tmp_path: Path, name: str, header: str
) -> None:
    prefix = {"authorization": "Bearer gyre-x-", "x-api-key": "gyre-x-"}.get(header, "")
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        url = proxy.url + "/v1/chat/completions"
        refused = proxy.post(url, json=BODY, headers={header: prefix + name})
        assert proxy.rows()[0].outcome == "rejected"
        assert engine.calls == []
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400
    assert ("API key" if prefix else "x-gyre-execution") in message


def test_of_signals_that_disagree_the_strongest_wins_and_the_row_is_flagged(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat("one", headers={"x-gyre-execution": "two"})
        proxy.chat("one", headers={"x-gyre-execution": "one", "authorization": "Bearer gyre-x-one"})
        flagged, agreed = proxy.rows(2)
    assert (flagged.identity.execution_id, flagged.capture_flags) == ("one", ["identity_conflict"])
    assert (agreed.identity.execution_id, agreed.capture_flags) == ("one", [])


def test_callers_without_a_name_share_one_by_their_key(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        for key in ("sk-1", "sk-1", "sk-2"):
            headers = {"authorization": f"Bearer {key}"}
            proxy.post(proxy.url + "/v1/chat/completions", json=BODY, headers=headers)
        names = [row.identity.execution_id for row in proxy.rows(3)]
    assert names[0] == names[1] != names[2]
    assert all(name.startswith("unnamed-") and "sk-" not in name for name in names)


CLAUDE = {
    "x-claude-code-session-id": "s-1",
    "x-claude-code-agent-id": "agent-2",
    "x-claude-code-parent-agent-id": "agent-1",
}
CODEX = {"session-id": "s-1", "thread-id": "agent-2", "x-codex-parent-thread-id": "agent-1"}
OPENCODE = {"x-session-id": "s-1", "x-parent-session-id": "agent-1"}


@pytest.mark.parametrize(
    ("headers", "agent"),
    [(CLAUDE, "agent-2"), (CODEX, "agent-2"), (OPENCODE, None)],
    ids=["claude", "codex", "opencode"],
)
def test_lineage_of_the_harness_is_kept_with_its_source(headers: dict[str, str], agent: str | None) -> None:
    who = identify("run", headers)
    assert (who.session_id, who.agent_id, who.parent_agent_id) == ("s-1", agent, "agent-1")
    assert who.session_source in headers and who.parent_agent_source in headers
    assert (who.agent_source in headers) == (agent is not None)


def test_further_labels_are_hints(tmp_path: Path) -> None:
    headers = {
        "x-codex-turn-metadata": '{"task_kind":"compact"}',
        "idempotency-key": "k-1",
        "x-stainless-retry-count": "2",
        "user-agent": "codex/1",
    }
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(headers=headers, prompt_cache_key="cache-1")
        who = proxy.rows()[0].identity
    assert who.hints == {k: headers[k] for k in ("x-codex-turn-metadata", "idempotency-key")}
    assert (who.retry_count, who.client) == (2, "codex/1")
    assert (who.session_id, who.session_source) == ("cache-1", "prompt_cache_key")


@pytest.mark.parametrize("count", ["", "-1", "x", "²", "9" * 30, "9" * 5000])
def test_a_retry_count_that_is_none_is_ignored(tmp_path: Path, count: str) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.chat(headers={"x-stainless-retry-count": count.encode("latin-1")}).status_code == 200
        assert proxy.rows()[0].identity.retry_count is None


@given(st.text(max_size=140))
def test_a_name_that_is_allowed_is_one_harmless_path_segment(name: str) -> None:
    try:
        checked_name(name, "the test")
    except RequestError:
        return
    assert split_path(f"/x/{name}/v1") == (name, "/v1")
    assert not set(name) & set("/\\%?#: ") and name not in (".", "..") and len(name) <= 128
    assert (Path("/logs") / name).resolve().parent == Path("/logs")


def test_a_bind_that_others_can_reach_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"logs": str(tmp_path), "backends": [{"url": "http://127.0.0.1:1"}]}
    for host in ("0.0.0.0", "192.168.1.7", "::"):
        with pytest.raises(ConfigError, match="no token is set"):
            load_settings(None, flags | {"host": host})
    assert load_settings(None, flags | {"host": "127.0.0.1"}).host == "127.0.0.1"
    monkeypatch.setenv("GYRE_PROXY_TOKEN", "t0ken")
    assert load_settings(None, flags | {"host": "0.0.0.0"}).host == "0.0.0.0"


def test_with_a_token_every_request_must_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_PROXY_TOKEN", "t0ken")
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        shown: list[dict[str, str]] = [{}, {"x-gyre-token": "wrong"}, {"authorization": "Bearer t0ke"}]
        assert [proxy.chat(headers=headers).status_code for headers in shown] == [401] * 3
        assert engine.calls == [] and [row.outcome for row in proxy.rows(3)] == ["rejected"] * 3
        right = [{"x-gyre-token": "t0ken"}, {"authorization": "Bearer t0ken"}, {"x-api-key": "t0ken"}]
        assert [proxy.chat(headers=headers).status_code for headers in right] == [200] * 3
        assert all("t0ken" not in str(call.headers) for call in engine.calls)
