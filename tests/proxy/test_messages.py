"""Messages through the proxy: translated for engines that give ids, read as they pass otherwise."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request, Script, ToolCall
from tests.proxy import raw
from tests.proxy.reading import body_of, ids_of, prompt_of, response_of
from tests.proxy.running import RunningProxy

Json = dict[str, Any]
TOOL = {"name": "Bash", "description": "runs it", "input_schema": {"type": "object", "properties": {}}}
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.220.a1b; cc_entrypoint=cli;"},
    {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
]
BODY: Json = {
    "model": "m",
    "max_tokens": 100,
    "system": SYSTEM,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "look around"}]}],
    "tools": [TOOL],
}
LOOK = Answer(text="I look.", reasoning="hm", tool_calls=(ToolCall("Bash", '{"command":  "ls"}'),))


def post(proxy: RunningProxy, body: Json = BODY, **fields: Any) -> httpx.Response:
    headers = {"x-api-key": "dummy", "anthropic-version": "2023-06-01"}
    return proxy.post(proxy.base() + "/messages?beta=true", json=body | fields, headers=headers)


def sdk(proxy: RunningProxy) -> anthropic.Anthropic:
    """The official client, as a harness would make it."""
    return anthropic.Anthropic(base_url=f"{proxy.url}/x/e1", api_key="dummy", max_retries=0)


def cut(proxy: RunningProxy, **fields: Any) -> tuple[bytes, bool]:
    """What came of a stream before its connection broke, and whether it did."""
    came, url = b"", proxy.base() + "/messages"
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
    assert (row.wire, row.upstream_wire) == ("messages", "chat")
    assert (row.outcome, row.capture_quality) == ("ok", "exact")
    assert body_of(rows, row) == answer.request.content and row.path == "/v1/messages"
    assert prompt_of(rows, row) == asked.prompt_ids and ids_of(row.output) == LOOK.output_ids
    assert asked.route == "/v1/chat/completions" and asked.headers["authorization"] == "Bearer dummy"
    assert asked.json["messages"][0] == {"role": "system", "content": "You are an agent."}
    assert "anthropic-version" not in asked.headers and "x-api-key" not in asked.headers
    assert response_of(row)["tool_calls"][0]["function"]["arguments"] == '{"command":  "ls"}'
    assert b"token_ids" not in answer.content and b"logprobs" not in answer.content


def test_the_official_client_reads_the_stream_and_the_plain_answer_alike(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        client = sdk(proxy)
        plain = client.messages.create(**BODY)
        with client.messages.stream(**BODY) as stream:
            streamed = stream.get_final_message()
    for message in (plain, streamed):
        kinds = [block.type for block in message.content]
        assert (kinds, message.stop_reason) == (["thinking", "text", "tool_use"], "tool_use")
        assert message.usage.output_tokens == len(LOOK.output_ids) and message.usage.input_tokens > 0
    assert [block.to_dict() for block in plain.content] == [block.to_dict() for block in streamed.content]


def test_events_come_as_the_engine_says_them(tmp_path: Path) -> None:
    script = Answer(text="abcdefgh" * 3, piece=8, gap=0.15)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        url, times = proxy.base() + "/messages", []
        with httpx.stream("POST", url, json=BODY | {"stream": True}) as response:
            for line in response.iter_lines():
                if "text_delta" in line:
                    times.append(time.monotonic())
    assert len(times) == 3 and times[-1] - times[0] > 0.2


def test_a_row_is_written_before_the_stream_ends(tmp_path: Path) -> None:
    asked = BODY | {"stream": True}
    with (
        FakeEngine(script=LOOK) as engine,
        RunningProxy(tmp_path, engine) as proxy,
        httpx.stream("POST", proxy.base() + "/messages", json=asked) as response,
    ):
        for line in response.iter_lines():
            if line == "event: message_stop":
                assert len([r for r in proxy.records() if getattr(r, "outcome", "") == "ok"]) == 1
                break
        else:
            pytest.fail("the stream has no end")


@pytest.mark.parametrize(
    ("script", "status", "kind", "words"),
    [
        (Answer(status=429, text="slow down", headers={"retry-after": "7"}), 429, "rate_limit_error", "slow"),
        (Answer(status=503, text="busy"), 529, "overloaded_error", "busy"),
        (Answer(status=500, text="oops"), 500, "api_error", "oops"),
        (Answer(status=401, text="who?"), 401, "authentication_error", "who?"),
        (
            Answer(status=400, text="This model's maximum context length is 8192 tokens, you asked for 9000"),
            *(400, "invalid_request_error", "prompt is too long"),
        ),
    ],
)
def test_errors_have_the_form_that_the_wires_agents_know(
    tmp_path: Path, script: Answer, status: int, kind: str, words: str
) -> None:
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = post(proxy, stream=True)
        (row,) = proxy.rows()
        assert len(engine.calls) == 1
    said = answer.json()
    assert (answer.status_code, said["type"], said["error"]["type"]) == (status, "error", kind)
    assert words in said["error"]["message"]
    assert answer.headers.get("retry-after") == script.headers.get("retry-after")
    assert (row.outcome, row.http_status) == ("upstream_error", script.status)


def test_what_the_proxy_itself_refuses_has_that_form_too(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        url = proxy.base() + "/messages"
        broken = proxy.post(url, content=b'{"model": ')
        shapeless = post(proxy, messages=[{"role": "user", "content": [{"type": "text"}]}])
        rows = proxy.rows(2)
        assert engine.calls == []
    for refused in (broken, shapeless):
        assert refused.status_code == 400 and refused.json()["type"] == "error"
    assert "messages[0].content[0]" in shapeless.json()["error"]["message"]
    assert [row.outcome for row in rows] == ["rejected"] * 2


def test_without_an_engine_a_call_is_told_that_it_is_overloaded(tmp_path: Path) -> None:
    flags: Json = {"ready": False, "limits.hold_s": 0.1}
    with RunningProxy(tmp_path, "http://127.0.0.1:9", **flags) as proxy:
        answer = post(proxy)
    assert answer.status_code == 529 and answer.json()["error"]["type"] == "overloaded_error"


def test_a_stream_that_the_engine_cuts_is_cut_and_what_came_is_kept(tmp_path: Path) -> None:
    script = Answer(text="x" * 40, cut_after=4)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, broken = cut(proxy)
        (row,) = proxy.rows()
    assert broken and b"text_delta" in came and b"message_stop" not in came and b"error" not in came
    assert row.outcome == "upstream_cut" and response_of(row)["content"]


def test_a_limit_that_fires_in_a_stream_is_an_error_event_of_the_wire(tmp_path: Path) -> None:
    script = Answer(text="x" * 40, hang_after=4)
    with (
        FakeEngine(script=script) as engine,
        RunningProxy(tmp_path, engine, **{"timeouts.idle": 0.2}) as proxy,
    ):
        came, broken = cut(proxy)
    assert not broken and b"event: error\n" in came
    said = json.loads(came.split(b"event: error\ndata: ")[1])
    assert said["type"] == "error" and "idle limit" in said["error"]["message"]


def test_an_error_in_the_engines_stream_is_one_of_the_wire(tmp_path: Path) -> None:
    event = b'data: {"error": {"message": "out of memory", "type": "x", "code": 500}}\n\n'
    headers = {"content-type": "text/event-stream"}
    with (
        FakeEngine(script=Answer(body=[event], headers=headers)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        came, _ = cut(proxy)
        (row,) = proxy.rows()
    assert b"event: error\n" in came and b"out of memory" in came
    assert row.outcome == "upstream_error" and row.error and "out of memory" in row.error


def follow_up(arguments: Json) -> Json:
    """The harness brings the tool's call back, as an object, and its result."""
    use = {"type": "tool_use", "id": "call_0", "name": "Bash", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "call_0", "content": "a b"}
    said = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return BODY | {"messages": [*BODY["messages"], *said]}


def arguments_sent(engine: FakeEngine) -> str:
    calls = [call for message in engine.calls[-1].json["messages"] for call in message.get("tool_calls", ())]
    text: str = calls[-1]["function"]["arguments"]
    return text


def test_arguments_go_back_to_the_engine_as_they_were_sampled(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        post(proxy, stream=True)
        post(proxy, follow_up({"command": "ls"}))
        assert arguments_sent(engine) == '{"command":  "ls"}'
        post(proxy, follow_up({"command": "rm"}))
        assert json.loads(arguments_sent(engine)) == {"command": "rm"}


def test_what_another_proxy_recorded_is_found_in_the_log(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine:
        with RunningProxy(tmp_path, engine) as proxy:
            post(proxy)
        with RunningProxy(tmp_path, engine) as proxy:
            post(proxy, follow_up({"command": "ls"}))
            assert arguments_sent(engine) == '{"command":  "ls"}'


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_the_prompt_that_would_be_sampled_from_is_counted(tmp_path: Path, kind: Any) -> None:
    with FakeEngine(kind=kind, script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        url = proxy.base() + "/messages/count_tokens?beta=true"
        counted = proxy.post(url, json={key: BODY[key] for key in ("model", "messages", "system", "tools")})
        post(proxy)
        count, call = proxy.rows(2)
    assert counted.json() == {"input_tokens": call.prompt_tokens}
    assert (count.wire, count.outcome, count.output) == ("count_tokens", "ok", None)


def test_a_count_that_the_engine_refuses_is_an_error_of_the_wire(tmp_path: Path) -> None:
    routes: dict[str, Script] = {"/tokenize": Answer(status=404, text="no such route")}
    with FakeEngine(routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        counted = proxy.post(proxy.base() + "/messages/count_tokens", json=BODY)
    assert counted.status_code == 502 and counted.json()["type"] == "error"


def test_the_probe_of_claude_code_is_answered_without_an_engine(tmp_path: Path) -> None:
    with RunningProxy(tmp_path, "http://127.0.0.1:9", ready=False) as proxy:
        for url in (proxy.url, proxy.url + "/x/e1"):
            assert httpx.head(url + "/api/hello").status_code == 200
        assert proxy.records() == []


def test_an_upgrade_to_websocket_is_refused_at_once(tmp_path: Path) -> None:
    upgrade = (
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-version: 13",
        "sec-websocket-key: eA==",
    )
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy, raw.connection(proxy.url) as sock:
        sock.sendall(raw.head("GET", "/x/e1/v1/responses", *upgrade))
        assert raw.answer(sock)[0] == 426
        (row,) = proxy.rows()
    assert (row.outcome, row.http_status) == ("rejected", 426)


def test_pinned_sampling_and_mapped_models_hold_for_translated_calls(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine:
        backends = [{"url": engine.url, "models": {"m": "inner"}}]
        pin: Json = {"temperature": 1.0, "top_p": 1.0}
        with RunningProxy(tmp_path, backends=backends, pin=pin) as proxy:
            said = post(proxy, temperature=0.1).json()
            (row,) = proxy.rows()
        sent = engine.calls[0].json
    assert (sent["temperature"], sent["top_p"], sent["model"]) == (1.0, 1.0, "inner")
    assert (row.sampling.temperature, row.model, row.upstream_model) == (1.0, "m", "inner")
    assert said["model"] == "m" and row.logprob_quality == "sampled"


def test_the_session_is_read_from_the_metadata_when_no_header_says_it(tmp_path: Path) -> None:
    users = [json.dumps({"device_id": "d", "session_id": "s-1"}), "user_a_account__session_s-2"]
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        for user in users:
            proxy.post(proxy.url + "/v1/messages", json=BODY | {"metadata": {"user_id": user}})
        rows = proxy.rows(2)
    assert [row.identity.session_id for row in rows] == ["s-1", "s-2"]
    assert {row.identity.session_source for row in rows} == {"metadata.user_id"}


EVENTS: list[Json] = [
    {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "usage": {"input_tokens": 7}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


def native(events: list[Json], **how: Any) -> Answer:
    parts = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return Answer(body=parts, headers={"content-type": "text/event-stream"}, **how)


def test_a_hosted_api_that_speaks_the_wire_gets_it_as_it_is(tmp_path: Path) -> None:
    routes: dict[str, Script] = {"/v1/messages": native(EVENTS)}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, broken = cut(proxy)
        rows = proxy.rows()
        request = engine.requests[-1]
    (row,) = rows
    assert came == b"".join(native(EVENTS).body or ()) and not broken  # type: ignore[arg-type]
    assert json.loads(request.body) == BODY | {"stream": True} == json.loads(body_of(rows, row))
    assert (row.wire, row.upstream_wire, row.outcome, row.capture_quality) == ("messages", None, "ok", "none")
    assert response_of(row) == {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}
    assert row.finish_reason == "end_turn" and json.loads(row.usage or b"")["input_tokens"] == 7


def test_a_native_stream_without_its_end_is_cut(tmp_path: Path) -> None:
    routes: dict[str, Script] = {"/v1/messages": native(EVENTS[:4])}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        _, broken = cut(proxy)
        (row,) = proxy.rows()
    assert broken and row.outcome == "upstream_cut"
    assert response_of(row)["content"][0]["text"] == "Hello"


def test_what_follows_the_end_of_a_native_stream_stays_behind_it(tmp_path: Path) -> None:
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    whole = b"".join(native(EVENTS).body or ()) + ping  # type: ignore[arg-type]
    routes: dict[str, Script] = {
        "/v1/messages": Answer(body=[whole], headers={"content-type": "text/event-stream"})
    }
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        came, broken = cut(proxy)
    assert came == whole and not broken


def test_native_calls_pin_what_the_wire_has_a_word_for(tmp_path: Path) -> None:
    plain = {"id": "msg_1", "role": "assistant", "content": [{"type": "text", "text": "hi"}], "usage": {}}
    routes: dict[str, Script] = {"/v1/messages": Answer(body=json.dumps(plain).encode())}
    pin: Json = {"temperature": 1.0, "min_p": 0.0}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine, pin=pin) as proxy:
        assert post(proxy).json() == plain
        (row,) = proxy.rows()
        sent = engine.requests[-1].json
    assert sent["temperature"] == 1.0 and "min_p" not in sent and "seed" not in sent
    assert "pin_not_carried:min_p" in row.capture_flags and response_of(row)["content"] == plain["content"]


def test_a_template_that_takes_one_system_message_gets_the_others_folded(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        late = [message for message in request.json["messages"][1:] if message["role"] == "system"]
        return Answer(status=400, text="System message must be at the beginning.") if late else LOOK

    reminded = [*BODY["messages"], {"role": "system", "content": "it is monday"}]
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answers = [post(proxy, messages=reminded) for _ in range(2)]
        rows = proxy.rows(3)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert engine.calls[-1].json["messages"][-1]["content"] == "look around\n\nit is monday"
    assert [(row.attempt, row.outcome) for row in rows] == [(0, "upstream_error"), (1, "ok"), (0, "ok")]
    assert rows[1].capture_flags == rows[2].capture_flags == ["system_folded"]


@pytest.mark.parametrize("stream", [False, True])
def test_llamacpp_whose_streams_lose_ids_is_asked_for_the_whole_answer(tmp_path: Path, stream: bool) -> None:
    script = Answer(text="I look at it.")
    with FakeEngine(kind="llamacpp", script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        said = post(proxy, stream=stream)
        (row,) = proxy.rows()
    assert "I look at it." in said.text and '"end_turn"' in said.text
    assert said.headers["content-type"] == ("text/event-stream" if stream else "application/json")
    assert not engine.calls[0].json.get("stream") and row.stream is stream
    assert (row.capture_quality, ids_of(row.output)) == ("exact", script.output_ids)
    assert row.capture_flags == (["asked_whole"] if stream else [])


def test_a_hosted_api_that_has_only_chat_can_be_translated_for(tmp_path: Path) -> None:
    with FakeEngine(kind="text", script=Answer(text="hi")) as engine:
        backends = [{"url": engine.url, "translate": "always"}]
        with RunningProxy(tmp_path, backends=backends) as proxy:
            said = post(proxy).json()
            (row,) = proxy.rows()
    assert said["content"] == [{"type": "text", "text": "hi"}]
    assert (row.upstream_wire, row.capture_quality) == ("chat", "none")


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
