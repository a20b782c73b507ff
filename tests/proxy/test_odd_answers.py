"""Odd requests and odd answers on translated wires: each ends recorded, and the client is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, ToolCall
from tests.proxy.anthropic_calls import BODY, LOOK, Json, arguments_sent, cut, post
from tests.proxy.reading import response_of
from tests.proxy.running import RunningProxy
from tests.proxy.test_failover import until_ready


def test_what_only_looks_like_a_request_is_refused_and_recorded(tmp_path: Path) -> None:
    deep: Json = {}
    for _ in range(1500):
        deep = {"a": deep}
    bodies = [("/messages/count_tokens", b"[]"), ("/messages/count_tokens", b"null")]
    bodies.append(("/messages", b'{"messages": [], "tools": ' + b"[" * 1500 + b"]" * 1500 + b"}"))
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        answers = [proxy.post(proxy.base() + path, content=body) for path, body in bodies]
        rows = proxy.rows(len(bodies))
    assert {answer.status_code for answer in answers} == {400}
    assert {answer.json()["type"] for answer in answers} == {"error"}
    assert [row.outcome for row in rows] == ["rejected"] * len(bodies)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_nested_deeper_than_anybody_means_are_recorded(tmp_path: Path, stream: bool) -> None:
    """Small models repeat themselves."""
    script = Answer(text="", tool_calls=(ToolCall("Bash", nested(400)),))
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy, stream=stream)
        (row,) = proxy.rows()
    assert answer.status_code == 200 and '"stop_reason":"tool_use"' in answer.text
    assert (row.outcome, row.capture_quality) == ("ok", "exact")


@pytest.mark.parametrize(
    "said",
    [
        b'{"choices":[{"index":0,"message":"hi","finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"message":[1],"finish_reason":"stop"}]}',
    ],
)
def test_an_answer_whose_message_is_none_is_an_error_of_the_engine(tmp_path: Path, said: bytes) -> None:
    with FakeEngine(script=Answer(body=said)) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy)
        (row,) = proxy.rows()
    assert answer.status_code == 502 and answer.json()["type"] == "error"
    assert row.outcome == "upstream_error"


STREAM = {"content-type": "text/event-stream"}


def chunk(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def test_an_event_that_cannot_be_read_fails_the_answer_instead_of_leaving_a_hole(tmp_path: Path) -> None:
    parts = [
        chunk(delta={"content": "a"}),
        b"data: {what\n\n",
        chunk(delta={"content": "b"}, finish_reason="stop"),
    ]
    script = Answer(body=[*parts, b"data: [DONE]\n\n"], headers=STREAM)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, _ = cut(proxy)
        (row,) = proxy.rows()
    assert b"event: error\n" in came and b"message_stop" not in came
    assert row.outcome == "upstream_error" and "event_unreadable" in row.capture_flags


def test_nothing_follows_an_error_of_the_engine(tmp_path: Path) -> None:
    parts = (
        chunk(delta={"content": "a"})
        + b'data: {"error": {"message": "oom"}}\n\n'
        + chunk(delta={"content": "after"})
    )
    with (
        FakeEngine(script=Answer(body=[parts], headers=STREAM)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        came, _ = cut(proxy)
        (row,) = proxy.rows()
    assert b"oom" in came and b"after" not in came and response_of(row)["content"] == "a"


def test_a_comment_after_the_end_changes_nothing(tmp_path: Path) -> None:
    whole = chunk(delta={"content": "a"}) + b"data: [DONE]\n\n: bye\n\n"
    with (
        FakeEngine(script=Answer(body=[whole], headers=STREAM)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        said = proxy.chat(stream=True)
        came, broken = cut(proxy)
        rows = proxy.rows(2)
    assert said.content.endswith(b"data: [DONE]\n\n") and b"message_stop" in came and not broken
    assert [row.outcome for row in rows] == ["ok", "ok"]


@pytest.mark.parametrize("status", [204, 307])
def test_an_answer_that_is_none_is_an_error_and_leads_nowhere_else(tmp_path: Path, status: int) -> None:
    script = Answer(status=status, body=b"", headers={"location": "http://127.0.0.1:9/"})
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy)
    assert answer.status_code == 502 and str(status) in answer.json()["error"]["message"]
    assert "location" not in answer.headers


def test_an_engine_that_uses_one_id_again_and_again_gets_each_call_as_sampled(tmp_path: Path) -> None:
    first, second = '{"command":  "ls"}', '{"command":   "pwd"}'
    script = [Answer(text="", tool_calls=(ToolCall("Bash", text),)) for text in (first, second)]
    uses = [
        {"type": "tool_use", "id": "call_0", "name": "Bash", "input": {"command": c}} for c in ("ls", "pwd")
    ]
    result = {"type": "tool_result", "tool_use_id": "call_0", "content": "x"}
    turns = [[{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}] for use in uses]
    with FakeEngine(script=[*script, Answer()]) as engine, RunningProxy(tmp_path, engine) as proxy:
        post(proxy)
        post(proxy, messages=[*BODY["messages"], *turns[0]])
        post(proxy, messages=[*BODY["messages"], *turns[0], *turns[1]])
        calls = [
            call for message in engine.calls[-1].json["messages"] for call in message.get("tool_calls", ())
        ]
    assert [call["function"]["arguments"] for call in calls] == [first, second]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_an_engine_that_names_none_get_names_that_record_and_client_share(
    tmp_path: Path, stream: bool
) -> None:
    said = {"function": {"name": "Bash", "arguments": '{"command":  "ls"}'}, "type": "function", "index": 0}
    plain = {"choices": [{"index": 0, "message": {"tool_calls": [said]}, "finish_reason": "tool_calls"}]}
    events = [chunk(delta={"tool_calls": [said]}, finish_reason="tool_calls"), b"data: [DONE]\n\n"]
    script = Answer(body=events, headers=STREAM) if stream else Answer(body=json.dumps(plain).encode())
    with FakeEngine(script=[script, LOOK]) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy, stream=stream)
        (row,) = proxy.rows()
        ident = f"call_{row.call_id}_0"
        use = {"type": "tool_use", "id": ident, "name": "Bash", "input": {"command": "ls"}}
        result = {"type": "tool_result", "tool_use_id": ident, "content": "x"}
        turn = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        post(proxy, messages=[*BODY["messages"], *turn])
        assert arguments_sent(engine) == '{"command":  "ls"}'
    assert ident in answer.text and response_of(row)["tool_calls"][0]["id"] == ident


def test_a_fault_of_our_own_costs_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise KeyError("a fault")

    monkeypatch.setattr("gyre.proxy.answer.translated_answer", broken)
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy)
        (row,) = proxy.rows()
    assert answer.status_code == 500 and "a fault" in answer.json()["error"]["message"]
    assert row.outcome == "upstream_error" and row.error and "KeyError" in row.error


def test_keep_alives_without_data_are_nothing(tmp_path: Path) -> None:
    parts = [
        chunk(delta={"content": "a"}),
        b"data: \n\n",
        b"data: null\n\n",
        chunk(delta={}, finish_reason="stop"),
    ]
    script = Answer(body=[*parts, b"data: [DONE]\n\n"], headers=STREAM)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, _ = cut(proxy)
        (row,) = proxy.rows()
    assert b"message_stop" in came and row.outcome == "ok"


def test_an_empty_id_in_every_delta_is_no_name(tmp_path: Path) -> None:
    pieces = [{"index": 0, "id": "", "function": {"name": "Bash"}}]
    pieces.append({"index": 0, "id": "", "function": {"arguments": '{"command":  "ls"}'}})
    parts = [chunk(delta={"tool_calls": [piece]}) for piece in pieces]
    script = Answer(body=[*parts, chunk(delta={}, finish_reason="stop"), b"data: [DONE]\n\n"], headers=STREAM)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, _ = cut(proxy)
        (row,) = proxy.rows()
    ident = f"call_{row.call_id}_0"
    assert ident.encode() in came and response_of(row)["tool_calls"][0]["id"] == ident


@pytest.mark.parametrize("stream", [False, True])
def test_content_in_parts_reaches_the_client(tmp_path: Path, stream: bool) -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "so"},
    ]
    plain = {"choices": [{"index": 0, "message": {"content": content}, "finish_reason": "stop"}]}
    events = [chunk(delta={"content": content}, finish_reason="stop"), b"data: [DONE]\n\n"]
    script = Answer(body=events, headers=STREAM) if stream else Answer(body=json.dumps(plain).encode())
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        said = post(proxy, stream=stream)
    assert said.text.index('"type":"thinking"') < said.text.index('"type":"text"')
    assert '"hm"' in said.text and '"so"' in said.text


def test_arguments_that_were_no_json_go_back_as_they_were_sampled(tmp_path: Path) -> None:
    script = [Answer(text="", tool_calls=(ToolCall("Bash", '{"command": "ls"'),)), LOOK]
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        use = post(proxy).json()["content"][0]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "x"}
        turn = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        post(proxy, messages=[*BODY["messages"], *turn])
        assert use["input"] == {"_raw": '{"command": "ls"'} and arguments_sent(engine) == '{"command": "ls"'


def test_an_error_that_only_mentions_the_system_prompt_folds_nothing(tmp_path: Path) -> None:
    script = Answer(status=400, text="input: follow the system prompt from the beginning")
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        post(proxy)
        assert [backend.folds_system for backend in proxy.worker.router.backends.values()] == [False]


def test_flags_belong_to_the_attempt_whose_request_was_changed(tmp_path: Path) -> None:
    busy = Answer(status=503, text="busy")
    with (
        FakeEngine(kind="llamacpp", script=busy) as one,
        FakeEngine(kind="vllm", script=LOOK) as two,
        RunningProxy(tmp_path, one, two) as proxy,
    ):
        until_ready(proxy, 2)
        for number in range(8):
            url = proxy.base(f"e{number}") + "/messages"
            proxy.post(url, json=BODY | {"stream": True})
        rows = [row for row in proxy.rows(8) if row.outcome == "ok"]
    assert {row.engine for row in rows} == {"vllm"} and not any(row.capture_flags for row in rows)
