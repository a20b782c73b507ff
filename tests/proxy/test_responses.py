"""Responses through the proxy: translated for engines that give ids, read as they pass otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import zstandard

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request, Script, ToolCall
from tests.proxy.reading import body_of, ids_of, prompt_of, response_of
from tests.proxy.running import RunningProxy

Json = dict[str, Any]
TOOL = {
    "type": "function",
    "name": "exec",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look around"}]}
BODY: Json = {
    "model": "m",
    "instructions": "You are an agent.",
    "input": [ASKED],
    "tools": [TOOL],
    "store": False,
}
LOOK = Answer(text="I look.", reasoning="hm", tool_calls=(ToolCall("exec", '{"cmd":  "ls"}'),))


def post(proxy: RunningProxy, body: Json = BODY, **fields: Any) -> httpx.Response:
    return proxy.post(proxy.base() + "/responses", json=body | fields)


def cut(proxy: RunningProxy, **fields: Any) -> tuple[bytes, bool]:
    """What came of a stream before its connection broke, and whether it did."""
    came, url = b"", proxy.base() + "/responses"
    with httpx.stream("POST", url, json=BODY | {"stream": True} | fields, timeout=30) as response:
        try:
            for chunk in response.iter_raw():
                came += chunk
        except httpx.RemoteProtocolError:
            return came, True
    return came, False


@pytest.mark.parametrize("stream", [False, True])
def test_a_translated_call_is_recorded_with_exact_ids(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy, stream=stream)
        rows = proxy.rows()
        asked = engine.calls[0]
    (row,) = rows
    assert answer.status_code == 200
    assert (row.wire, row.upstream_wire) == ("responses", "chat")
    assert (row.outcome, row.capture_quality) == ("ok", "exact")
    assert body_of(rows, row) == answer.request.content
    assert prompt_of(rows, row) == asked.prompt_ids and ids_of(row.output) == LOOK.output_ids
    assert asked.json["messages"][0] == {"role": "system", "content": "You are an agent."}
    assert response_of(row)["tool_calls"][0]["function"]["arguments"] == '{"cmd":  "ls"}'
    assert b"token_ids" not in answer.content


def test_the_official_client_reads_the_stream_and_the_plain_answer_alike(tmp_path: Path) -> None:
    with (
        FakeEngine(script=LOOK) as engine,
        RunningProxy(tmp_path, engine) as proxy,
        openai.OpenAI(base_url=proxy.base(), api_key="dummy", max_retries=0) as client,
    ):
        plain = client.responses.create(**BODY)
        *_, last = client.responses.create(**BODY, stream=True)
    assert last.type == "response.completed"
    for response in (plain, last.response):
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert response.status == "completed" and response.usage
        assert response.usage.output_tokens == len(LOOK.output_ids)
    assert plain.output[-1].to_dict()["arguments"] == '{"cmd":  "ls"}'


def test_a_compressed_request_is_read_and_sent_on_plain(tmp_path: Path) -> None:
    data = zstandard.compress(json.dumps(BODY).encode())
    headers = {"content-encoding": "zstd", "content-type": "application/json", "session-id": "s1"}
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.post(proxy.base() + "/responses", content=data, headers=headers)
        rows = proxy.rows()
    assert answer.status_code == 200 and json.loads(body_of(rows, rows[0])) == BODY
    assert rows[0].identity.session_id == "s1"


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Answer(status=429, text="slow down", headers={"retry-after": "7"}), 429, None),
        (Answer(status=503, text="busy"), 503, None),
        (
            Answer(status=400, text="This model's maximum context length is 8192 tokens, you asked for 9000"),
            *(400, "context_length_exceeded"),
        ),
    ],
)
def test_errors_keep_status_and_form(tmp_path: Path, script: Answer, status: int, code: str | None) -> None:
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy, stream=True)
        assert len(engine.calls) == 1
    assert answer.status_code == status and script.text in answer.json()["error"]["message"]
    assert answer.headers.get("retry-after") == script.headers.get("retry-after")
    if code:
        assert answer.json()["error"]["code"] == code


def test_what_the_proxy_does_not_keep_is_refused_clearly(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        refused = post(proxy, previous_response_id="resp_1")
        (row,) = proxy.rows()
        assert engine.calls == []
    error = refused.json()["error"]
    assert refused.status_code == 400 and "previous_response_id" in error["message"]
    assert (row.outcome, row.wire) == ("rejected", "responses")


def test_a_stream_that_the_engine_cuts_is_cut(tmp_path: Path) -> None:
    script = Answer(text="x" * 40, cut_after=4)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, broken = cut(proxy)
        (row,) = proxy.rows()
    assert broken and b"output_text.delta" in came and b"response.completed" not in came
    assert b"response.failed" not in came
    assert row.outcome == "upstream_cut" and response_of(row)["content"]


@pytest.mark.parametrize("kind", ["gyre", "vllm"])
def test_a_stream_that_the_engine_abandons_is_cut(tmp_path: Path, kind: Any) -> None:
    script = Answer(text="a long story", finish_reason="abort")
    with FakeEngine(kind=kind, script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, broken = cut(proxy)
        (row,) = proxy.rows()
    assert broken and b"response.completed" not in came and b"response.failed" not in came
    assert (row.outcome, row.finish_reason, row.capture_quality) == ("upstream_cut", "abort", "exact")


def test_a_limit_that_fires_in_a_stream_fails_the_response(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"timeouts.idle": 0.2}
    script = Answer(text="x" * 40, hang_after=4)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine, **flags) as proxy:
        came, broken = cut(proxy)
    assert not broken and b"event: response.failed\n" in came and b"idle limit" in came


def test_arguments_go_back_to_the_engine_as_they_were_sampled(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "call_0", "name": "exec", "arguments": '{"cmd":"ls"}'}
    output = {"type": "function_call_output", "call_id": "call_0", "output": "a b"}
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        post(proxy, stream=True)
        post(proxy, input=[ASKED, call, output])
        sent = engine.calls[-1].json["messages"]
    assert sent[-2]["tool_calls"][0]["function"]["arguments"] == '{"cmd":  "ls"}'
    assert sent[-1] == {"role": "tool", "tool_call_id": "call_0", "content": "a b"}


MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
MESSAGE["content"] = [{"type": "output_text", "text": "Hello", "annotations": []}]  # type: ignore[assignment]
USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
DONE = {"id": "resp_1", "object": "response", "status": "completed", "output": [MESSAGE], "usage": USAGE}
EVENTS: list[Json] = [
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE | {"content": []}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hello"},
    {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
    {"type": "response.completed", "response": DONE},
]


def native(events: list[Json]) -> Answer:
    parts = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return Answer(body=parts, headers={"content-type": "text/event-stream"})


def test_a_hosted_api_that_speaks_the_wire_gets_it_as_it_is(tmp_path: Path) -> None:
    routes: dict[str, Script] = {"/v1/responses": native(EVENTS)}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, broken = cut(proxy, previous_response_id="resp_0")
        rows = proxy.rows()
    (row,) = rows
    assert came.count(b"event: ") == len(EVENTS) and came.endswith(b"\n\n") and not broken
    assert json.loads(body_of(rows, row))["previous_response_id"] == "resp_0"
    assert (row.wire, row.upstream_wire, row.outcome) == ("responses", None, "ok")
    assert response_of(row) == {"output": [MESSAGE]} and json.loads(row.usage or b"") == USAGE


def test_a_native_stream_without_its_end_is_cut_and_what_came_is_kept(tmp_path: Path) -> None:
    routes: dict[str, Script] = {"/v1/responses": native(EVENTS[:3])}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        _, broken = cut(proxy)
        (row,) = proxy.rows()
    assert broken and row.outcome == "upstream_cut"
    assert response_of(row)["output"][0]["content"][0]["text"] == "Hello"


def test_a_plain_native_answer_is_read_too(tmp_path: Path) -> None:
    routes: dict[str, Script] = {"/v1/responses": Answer(body=json.dumps(DONE).encode())}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        assert post(proxy).json() == DONE
        (row,) = proxy.rows()
    assert response_of(row) == {"output": [MESSAGE]} and row.outcome == "ok"


def test_a_late_developer_message_with_an_image_is_folded_too(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        late = [message for message in request.json["messages"][1:] if message["role"] == "system"]
        return Answer(status=400, text="System message must be at the beginning.") if late else LOOK

    shown = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    late = {"type": "message", "role": "developer", "content": [shown]}
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy, input=[ASKED, late])
    assert answer.status_code == 200 and engine.calls[-1].json["messages"][-1]["role"] == "user"
