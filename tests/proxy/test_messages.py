"""Messages through the proxy: translated for engines that give ids, read as they pass otherwise."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.proxy.calls import VersionSpan
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request, Script
from tests.proxy import raw
from tests.proxy.anthropic_calls import BODY, LOOK, Json, arguments_sent, cut, follow_up, post, sdk
from tests.proxy.reading import body_of, ids_of, prompt_of, response_of
from tests.proxy.running import RunningProxy


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
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy, sdk(proxy) as client:
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


@pytest.mark.parametrize("kind", ["vllm", "gyre", "llamacpp"])
def test_the_prompt_that_would_be_sampled_from_is_counted(tmp_path: Path, kind: Any) -> None:
    with FakeEngine(kind=kind, script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        url = proxy.base() + "/messages/count_tokens?beta=true"
        counted = proxy.post(url, json={key: BODY[key] for key in ("model", "messages", "system", "tools")})
        post(proxy)
        count, call = proxy.rows(2)
    assert counted.json() == {"input_tokens": call.prompt_tokens}
    assert (count.wire, count.outcome, count.output) == ("count_tokens", "ok", None)


@pytest.mark.parametrize("stream", [False, True])
def test_our_own_engine_is_recorded_exactly_and_its_fields_stay_with_us(tmp_path: Path, stream: bool) -> None:
    answer = Answer(text="good day", versions=[("3", 0, 4), ("4", 4, 9)])
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        shown = post(proxy, stream=stream, temperature=0.5)
        (row,) = proxy.rows()
    assert b"weight" not in shown.content and b"sampling_logprob" not in shown.content
    assert (row.upstream_wire, row.capture_quality, row.logprob_quality) == ("chat", "exact", "sampled")
    assert row.version_spans == [VersionSpan("3", 0, 4), VersionSpan("4", 4, 9)]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_engine_abandoned_does_not_end(tmp_path: Path, stream: bool) -> None:
    answer = Answer(text="good day", finish_reason="moved")
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        if stream:
            with pytest.raises(httpx.RemoteProtocolError):
                post(proxy, stream=True)
        else:
            assert post(proxy).json()["type"] == "error"
        (row,) = proxy.rows()
    assert (row.outcome, row.capture_quality) == ("upstream_cut", "exact")


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
