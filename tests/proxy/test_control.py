"""The control API of one worker, in process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.proxy.log.reading.read import read_log
from tests.engines.fake import FakeEngine
from tests.proxy.controls import URL, Control
from tests.proxy.running import RunningProxy

ROOT = Path(__file__).parents[2]
NAME = "127.0.0.1:9001"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with Control(tmp_path) as control:
        yield control


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """For requests that change nothing, since they are refused or only look."""
    with Control(tmp_path_factory.mktemp("untouched")) as control:
        yield control
        assert control.events() == []
        assert list(control.worker.router.backends) == [NAME]


def error(control: Control, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str, str]:
    """(status, code, message) of a refusal, which always has the same form."""
    response = control(method, path, body, **options)
    detail = response.json()["error"]
    return response.status_code, detail["code"], detail["message"]


def test_health_is_degraded_while_no_backend_answers_and_ok_after(control: Control) -> None:
    asked = control("GET", "/healthz")
    assert asked.status_code == 200
    assert asked.json()["status"] == "degraded"
    assert asked.json()["backends"] == {NAME: "has not answered yet"}
    control.worker.router.backends[NAME].ready = True
    assert control.ok("GET", "/healthz") == {"status": "ok", "reason": None, "backends": {NAME: "ready"}}


def test_health_says_what_is_wrong_with_a_backend(control: Control) -> None:
    control.worker.router.backends[NAME].problem = "connection refused"
    assert control.ok("GET", "/healthz")["backends"] == {NAME: "connection refused"}


def test_a_stopping_worker_is_unhealthy(control: Control) -> None:
    control.worker.stopping = True
    asked = control("GET", "/healthz")
    assert (asked.status_code, asked.json()["status"]) == (503, "failing")


def test_a_full_disk_is_unhealthy_and_refuses_events(control: Control) -> None:
    control.fill_disk()
    status, code, message = error(control, "PUT", "executions/e1", {"task": "t"})
    assert (status, code) == (503, "recording_failed")
    assert "`e1`" in message and "No space left on device" in message
    asked = control("GET", "/healthz")
    assert (asked.status_code, asked.json()["status"]) == (503, "failing")
    assert "No space left" in asked.json()["reason"]
    assert control("GET", "executions/e1").status_code == 404


def test_backends_are_added_drained_versioned_and_removed(control: Control) -> None:
    url = "http://10.0.0.5:8000"
    added = control("POST", "backends", {"url": url + "/v1/", "cell": "c1", "models": {"a": "b"}})
    assert added.status_code == 201
    assert (added.json()["name"], added.json()["url"], added.json()["ready"]) == ("10.0.0.5:8000", url, False)
    changed = control.ok("PATCH", "backends/10.0.0.5:8000", {"draining": True, "version": 12})
    assert (changed["draining"], changed["version"]) == (True, "12")
    assert control.ok("PUT", "version", {"version": "13"})["backends"] == [NAME, "10.0.0.5:8000"]
    shown = control.ok("GET", "backends")["backends"]
    assert [(b["name"], b["version"], b["draining"]) for b in shown] == [
        (NAME, "13", False),
        ("10.0.0.5:8000", "13", True),
    ]
    assert control("DELETE", "backends/10.0.0.5:8000").status_code == 204
    assert list(control.worker.router.backends) == [NAME]


def test_adding_a_backend_again_is_fine_and_another_url_is_a_conflict(control: Control) -> None:
    assert control("POST", "backends", {"url": URL}).status_code == 201
    refused = error(control, "POST", "backends", {"url": "http://10.0.0.9:1", "name": NAME})
    assert refused == (409, "backend_exists", f"backend `{NAME}` is there already, at {URL}")


@pytest.mark.parametrize(("method", "body"), [("PATCH", {"draining": True}), ("DELETE", None)])
def test_a_backend_that_is_not_there_is_named(untouched: Control, method: str, body: Any) -> None:
    assert error(untouched, method, "backends/b7", body) == (
        404,
        "unknown_backend",
        "no backend is named `b7`",
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "ftp://10.0.0.5"},
        {"url": "http://"},
        {"url": "http://10.0.0.5:99999"},
        {"url": "http://user:hunter2@10.0.0.5"},
        {"url": "http://10.0.0.5/?key=hunter2"},
        {"url": "http://10.0.0.5", "profile": "hunter2"},
        {"url": "http://10.0.0.5", "hunter": "hunter2"},
    ],
)
def test_a_bad_backend_is_refused_without_repeating_what_it_held(untouched: Control, body: Any) -> None:
    response = untouched("POST", "backends", body)
    assert response.status_code == 422
    assert "hunter2" not in response.text
    assert list(untouched.worker.router.backends) == [NAME]


def test_a_change_that_changes_nothing_is_refused(untouched: Control) -> None:
    status, _, message = error(untouched, "PATCH", f"backends/{NAME}", {})
    assert (status, message) == (422, "`body`: give `draining` or `version`")


def test_an_execution_is_described_bit_by_bit(control: Control) -> None:
    control.ok("PUT", "executions/e1", {"task": "t1", "pin": {"temperature": 1.0, "top_p": 1}})
    shown = control.ok("PUT", "executions/e1", {"group": "g1", "evaluation": True})
    assert (shown["task"], shown["group"], shown["evaluation"]) == ("t1", "g1", True)
    assert (shown["pin"]["temperature"], shown["pin"]["top_p"], shown["pin"]["top_k"]) == (1.0, 1.0, None)
    assert control.ok("GET", "executions/e1") == shown
    first, second = control.events()
    assert (first.event, first.task, first.execution_attempt) == ("started", "t1", 0)
    assert b'"temperature":1.0' in (first.details or b"")
    assert (second.event, second.group, second.evaluation, second.task) == ("updated", "g1", True, None)


def test_a_call_after_the_end_belongs_to_the_next_attempt(control: Control) -> None:
    executions = control.worker.executions
    executions.end_call(executions.begin_call("e1"), 0)
    assert control.ok("POST", "executions/e1/events", {"event": "ended"})["attempt"] == 0
    assert control.ok("GET", "executions/e1")["ended"]
    executions.begin_call("e1")
    shown = control.ok("GET", "executions/e1")
    assert (shown["attempt"], shown["ended"], shown["calls"], shown["open"]) == (1, False, 2, 1)
    assert control.ok("POST", "executions/e1/events", {"event": "timed_out"})["attempt"] == 1


def test_events_belong_to_the_attempt_that_runs_or_that_just_ended(control: Control) -> None:
    def event(**body: Any) -> int:
        return int(control.ok("POST", "executions/e1/events", body)["attempt"])

    control.ok("PUT", "executions/e1", {"task": "t1"})
    assert event(event="scored", score=0.5) == 0
    assert event(event="timed_out", reason="600 s", artifact="/work") == 0
    assert event(event="ended") == 0
    assert event(event="scored", outcome="scorer_failed") == 0
    control.ok("PUT", "executions/e1", {"group": "g1"})
    assert event(event="started") == 1
    assert event(event="ended", outcome="failed", details={"exit": 2}) == 1
    assert [(e.event, e.execution_attempt, e.outcome) for e in control.events()] == [
        ("started", 0, None),
        ("scored", 0, None),
        ("timed_out", 0, "timed_out"),
        ("ended", 0, "completed"),
        ("scored", 0, "scorer_failed"),
        ("updated", 0, None),
        ("started", 1, None),
        ("ended", 1, "failed"),
    ]


def test_executions_are_listed_the_latest_first(control: Control) -> None:
    for name in ("a-1", "b-1", "a-2", "a-3"):
        control.ok("PUT", f"executions/{name}", {})
    control.ok("POST", "executions/a-1/events", {"event": "ended"})
    listed = control.ok("GET", "executions?prefix=a-&limit=2")["executions"]
    assert [execution["name"] for execution in listed] == ["a-1", "a-3"]
    assert error(control, "GET", "executions?limit=0")[0] == 422


@pytest.mark.parametrize("name", ["%2e%2e", ".hidden", "a%5Cb", "a b", "x" * 129, "a%00", "-a", "é"])
def test_a_name_from_which_a_path_could_be_formed_is_refused(untouched: Control, name: str) -> None:
    for method, path, body in (
        ("PUT", f"executions/{name}", {}),
        ("GET", f"executions/{name}", None),
        ("POST", f"executions/{name}/events", {"event": "ended"}),
    ):
        assert untouched(method, path, body).status_code in (400, 404, 405)
    assert untouched.events() == []
    assert not untouched.worker.executions.known


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"event": "exploded"}', "`event`"),
        ('{"event": "ended", "outcome": "fine"}', "`outcome`"),
        ('{"event": "scored"}', "`scored` needs a `score`"),
        ('{"event": "scored", "score": NaN}', "`score`"),
        ('{"event": "scored", "score": 1e999}', "`score`"),
        ('{"event": "ended", "reason": "\\ud800"}', "`reason`"),
        ('{"event": "ended", "details": {"a": "\\ud800"}}', "`details`"),
        ('{"event": "ended", "details": [1]}', "`details`"),
        ('{"event": "ended", "sorce": 1}', "`sorce`"),
        ('{"event": ', "JSON"),
        ("[]", "`body`"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_malformed_event_is_refused_and_says_what_is_wrong(
    untouched: Control, content: str, named: str
) -> None:
    headers = {"content-type": "application/json"}
    status, _, message = error(untouched, "POST", "executions/e1/events", content=content, headers=headers)
    assert status == 422
    assert named in message
    assert untouched.events() == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_what_a_page_in_a_browser_can_send_unasked_is_refused(untouched: Control, kind: str) -> None:
    sent = {"content": '{"event": "ended"}', "headers": {"content-type": kind} if kind else {}}
    status, _, message = error(untouched, "POST", "executions/e1/events", **sent)
    assert (status, "application/json" in message) == (422, True)
    assert untouched.events() == []


def test_json_of_a_kind_of_its_own_is_json(control: Control) -> None:
    headers = {"content-type": "Application/Vnd.Api+JSON; charset=utf-8"}
    sent = control("POST", "executions/e1/events", content='{"event": "ended"}', headers=headers)
    assert sent.status_code == 200


@pytest.mark.parametrize(
    "wrong", [{"limits": {"calls": 10**30}}, {"limits": {"tokens": 2**53 + 1}}, {"pin": {"top_k": 2**31}}]
)
def test_a_number_that_no_engine_and_no_worker_could_take_is_refused(
    untouched: Control, wrong: dict[str, Any]
) -> None:
    assert error(untouched, "PUT", "executions/e1", wrong)[0] == 422
    assert untouched.events() == []


def test_an_execution_that_shall_be_new_is_refused_where_anything_is_known_of_it(control: Control) -> None:
    control.ok("PUT", "executions/e1", {"task": "t1", "new": True})
    control.ok("POST", "executions/e2/events", {"event": "ended"})
    for name in ("e1", "e2"):
        before = control.ok("GET", f"executions/{name}")
        refusal = error(control, "PUT", f"executions/{name}", {"task": "t2", "new": True})
        assert refusal == (409, "known_execution", f"execution `{name}` is known already")
        assert control.ok("GET", f"executions/{name}") == before
    assert [event.event for event in control.events()] == ["started", "ended"]


def test_a_huge_body_is_refused(untouched: Control) -> None:
    body = {"event": "ended", "details": {"text": "x" * (5 << 20)}}
    assert error(untouched, "POST", "executions/e1/events", body)[0] == 413


def test_unknown_paths_are_named(untouched: Control) -> None:
    status, _, message = error(untouched, "GET", "nothing")
    assert (status, message) == (404, "Not Found: GET /gyre/v1/nothing")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("executions/a", "GET, PUT"), ("backends/a", "PATCH, DELETE"), ("log/seal", "POST")],
)
def test_a_method_that_a_path_has_not_is_refused_with_those_it_has(
    untouched: Control, path: str, allowed: str
) -> None:
    answer = untouched("HEAD", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_sealing_moves_the_journal_into_parquet(control: Control) -> None:
    control.ok("PUT", "executions/e1", {"task": "t1"})
    (report,) = control.ok("POST", "log/seal")["reports"]
    assert report["executions"] == 1
    assert control.events() == []
    assert read_log(control.logs).executions["task"].to_pylist() == ["t1"]


def test_after_forgetting_a_call_refers_to_nothing_written_before(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat()
        proxy.chat()
        assert httpx.post(f"{proxy.url}/gyre/v1/log/forget").json() == {"forgotten": True}
        proxy.chat()
        first, second, third = proxy.rows(3)
    assert (second.parent_call_id, second.new_messages) == (first.call_id, [])
    assert (third.parent_call_id, third.new_messages) == (None, first.new_messages)


def test_status_sums_it_up(untouched: Control) -> None:
    status = untouched.ok("GET", "status")
    assert (status["schema"], status["workers"], status["stopping"]) == (1, 1, False)
    assert status["logs"] == str(untouched.logs)
    assert [backend["name"] for backend in status["backends"]] == [NAME]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-gyre-token": "wrong"}, 401),
        ({"x-gyre-token": "sésame".encode()}, 401),
        ({"x-gyre-token": "sesame"}, 200),
        ({"authorization": "Bearer sesame"}, 200),
    ],
)
def test_where_a_token_is_set_every_request_must_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, Any], status: int
) -> None:
    monkeypatch.setenv("GYRE_PROXY_TOKEN", "sesame")
    with Control(tmp_path) as control:
        assert control("GET", "status", headers=headers).status_code == status
        assert control("GET", "/metrics", headers=headers).status_code == status
        assert control("GET", "openapi.json", headers=headers).status_code == status
        assert control("GET", "/healthz", headers=headers).status_code == 200


def test_every_route_is_documented_and_nothing_else(untouched: Control) -> None:
    paths = untouched.ok("GET", "openapi.json")["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    text = (ROOT / "docs" / "control-api.md").read_text()
    assert set(re.findall(r"^\| (GET|PUT|POST|PATCH|DELETE) \| `([^`]+)` \|", text, re.MULTILINE)) == routes


def test_every_field_of_a_request_is_documented(untouched: Control) -> None:
    schemas = untouched.ok("GET", "openapi.json")["components"]["schemas"]
    fields = {f for name, s in schemas.items() if name.endswith(("Body", "Change")) for f in s["properties"]}
    text = (ROOT / "docs" / "control-api.md").read_text()
    assert sorted(field for field in fields if f"`{field}`" not in text) == []
