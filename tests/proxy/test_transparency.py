"""What goes through unchanged, and what the smallest change is where one is needed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import httpx
import pytest
import zstandard

from gyre.proxy.calls import CallRecord, NewMessage
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.raw import answer, connection, head
from tests.proxy.reading import body_of, content_of
from tests.proxy.running import RunningProxy

ODD = (
    b' { "messages" :[ {"role":"user","content":"\\u00e9\\/\\n"} , {"content":"1e3"} ],'
    b'"temperature": 1.0,\t"top_p":1e0,"model":"a","model":"m", '
    b'"x":{"b":1,"a":[1.50,-0.0,1E+2]},"user":"\\u0061"} \n'
)


def sent(proxy: RunningProxy, engine: FakeEngine, body: bytes) -> bytes:
    """What the engine gets of a body."""
    headers = {"content-type": "application/json"}
    assert proxy.post(proxy.base() + "/chat/completions", content=body, headers=headers).status_code == 200
    return engine.calls[-1].body


def test_a_body_is_byte_identical_when_nothing_is_injected(tmp_path: Path) -> None:
    with FakeEngine(kind="text") as engine, RunningProxy(tmp_path, engine) as proxy:
        assert sent(proxy, engine, ODD) == ODD
        rows = proxy.rows()
    assert body_of(rows, rows[0]) == ODD and rows[0].model == "m"


def test_a_body_is_byte_identical_but_for_fields_at_its_end(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        assert sent(proxy, engine, ODD) == ODD[:-3] + b',"logprobs":true,"return_token_ids":true} \n'
        rows = proxy.rows()
    assert body_of(rows, rows[0]) == ODD


def test_fields_that_are_there_are_replaced_where_they_stand(tmp_path: Path) -> None:
    body = b'{"logprobs" : false ,"return_token_ids":null,"n":1.0, "messages": []}'
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        got = sent(proxy, engine, body)
    assert got == b'{"logprobs" : true ,"return_token_ids":true,"n":1.0, "messages": []}'


def test_what_the_client_asked_for_itself_is_left_alone(tmp_path: Path) -> None:
    body = b'{"logprobs": true,"top_logprobs":3,"return_token_ids":true,"messages": []}'
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        assert sent(proxy, engine, body) == body


def test_the_models_answer_and_are_no_calls(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        listed = httpx.get(proxy.base() + "/models")
        assert listed.content == httpx.get(engine.url + "/v1/models").content
        (row,) = proxy.rows()
    assert listed.json()["data"][0]["max_model_len"]
    assert nothing_of_a_call(row) == ("models", "ok", 200)


def nothing_of_a_call(row: CallRecord) -> tuple[str, str, int | None]:
    """Wire, outcome and status of a row that no tree may hold."""
    assert (row.response, row.output, row.prompt_suffix, row.message_suffix) == (None, None, None, [])
    assert row.capture_quality == "none"
    return row.wire, row.outcome, row.http_status


def test_token_counts_of_an_unknown_engine_are_its_own_and_no_calls(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    routes = {"/v1/messages/count_tokens": Answer(body=b'{"input_tokens": 7}')}
    routes["/tokenize"] = Answer(body=b'{"count": 21}')
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        counted = proxy.post(proxy.base() + "/messages/count_tokens?beta=true", json=body)
        tokenized = proxy.post(proxy.url + "/x/e1/tokenize", json=body)
        rows = proxy.rows(2)
        assert engine.requests[1].path == "/v1/messages/count_tokens?beta=true"
        assert engine.requests[1].json == body
    assert counted.content == b'{"input_tokens": 7}' and tokenized.json()["count"] == 21
    assert nothing_of_a_call(rows[0]) == ("count_tokens", "ok", 200)
    assert nothing_of_a_call(rows[1]) == ("opaque", "ok", 200)
    assert json.loads(rows[0].raw_request or b"") == body and rows[0].raw_response == counted.content


def test_a_compressed_body_of_another_path_passes_through_as_it_is(tmp_path: Path) -> None:
    body = zstandard.compress(json.dumps({"model": "m", "input": "hi"}).encode())
    events = b"event: one\ndata: {}\n\nevent: two\ndata: {}\n\n"
    routes = {"/v1/other": Answer(body=[events], headers={"content-type": "text/event-stream"})}
    with FakeEngine(routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        headers = {"content-encoding": "zstd", "content-type": "application/json", "session-id": "s1"}
        said = proxy.post(proxy.base() + "/other", content=body, headers=headers)
        (row,) = proxy.rows()
        request = engine.requests[-1]
    assert (request.body, request.headers["content-encoding"]) == (body, "zstd")
    assert said.content == events and said.headers["content-type"] == "text/event-stream"
    assert nothing_of_a_call(row) == ("opaque", "ok", 200)
    assert (row.raw_request, row.raw_response, row.request_bytes) == (body, events, len(body))


def test_a_compressed_answer_of_another_wire_passes_through_as_it_is(tmp_path: Path) -> None:
    routes = {"/v1/files": Answer(body=b'{"a": 1}' * 50, gzip="whole")}
    with FakeEngine(routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        said = proxy.post(proxy.base() + "/files")
    assert said.headers["content-encoding"] == "gzip" and said.content == b'{"a": 1}' * 50


def test_of_other_wires_no_more_than_64_kb_are_kept(tmp_path: Path) -> None:
    routes = {"/v1/files": Answer(body=b"y" * 200_000)}
    with FakeEngine(routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        said = proxy.post(proxy.base() + "/files", content=b"x" * 100_000)
        (row,) = proxy.rows()
        assert engine.requests[-1].body == b"x" * 100_000
    assert said.content == b"y" * 200_000
    assert (row.raw_request, row.request_bytes) == (b"x" * 65536, 100_000)
    assert (row.raw_response, row.response_bytes) == (b"y" * 65536, 200_000)


def test_an_answer_of_another_wire_that_is_cut_looks_cut(tmp_path: Path) -> None:
    for kind, body in (("text/event-stream", [b"data: {}\n\n"] * 4), ("application/json", b"[1, 2, 3]")):
        routes = {"/v1/other": Answer(body=body, headers={"content-type": kind}, cut_after=1)}
        with FakeEngine(routes=routes) as engine, RunningProxy(tmp_path / kind[:4], engine) as proxy:
            with pytest.raises(httpx.RemoteProtocolError):
                proxy.post(proxy.base() + "/other", json={})
            (row,) = proxy.rows()
        assert (row.wire, row.outcome) == ("opaque", "upstream_cut")
        assert row.raw_response


def test_a_websocket_upgrade_is_refused_at_once(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        for path in ("/x/e1/v1/responses", "/v1/chat/completions"):
            with connection(proxy.url) as sock:
                key = base64.b64encode(b"0123456789abcdef").decode()
                upgrade = ("upgrade: websocket", "connection: Upgrade", "sec-websocket-version: 13")
                sock.sendall(head("GET", path, *upgrade, f"sec-websocket-key: {key}"))
                status, body = answer(sock)
            assert status == 426 and b"WebSocket" in body
        assert [row.outcome for row in proxy.rows(2)] == ["rejected", "rejected"]
        assert len(engine.requests) == 1


def test_a_prompt_of_30_mb_with_images_passes_and_is_stored_once(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 2_500_000}}
    messages = [{"role": "user", "content": [image]} for _ in range(3)]
    with FakeEngine(kind="text") as engine, RunningProxy(tmp_path, engine) as proxy:
        for _ in range(2):
            assert proxy.chat(messages=messages).status_code == 200
        rows = proxy.rows(2)
        assert engine.calls[0].json["messages"] == messages
        assert proxy.worker.recorder.bytes < 12_000_000
        assert proxy.run(memory(proxy)) == 0
    assert rows[0].request_bytes > 30_000_000 and len(stored(rows)) == 1
    assert json.loads(body_of(rows, rows[1]))["messages"] == messages


async def memory(proxy: RunningProxy) -> int:
    return proxy.relay.budget.used


def stored(rows: list[CallRecord]) -> list[NewMessage]:
    return [message for row in rows for message in row.new_messages]


def test_headers_of_the_connection_stay_and_all_others_go_on(tmp_path: Path) -> None:
    headers = {
        "x-custom": "caf\u00e9".encode(),
        "user-agent": "me/1",
        "te": "trailers",
        "x-gyre-execution": "e1",
    }
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(headers=headers)
        got = engine.calls[0].headers
    assert got["x-custom"].encode("latin-1") == "caf\u00e9".encode() and got["user-agent"] == "me/1"
    assert got["host"] == f"127.0.0.1:{engine.port}"
    assert not {"te", "x-gyre-execution", "x-gyre-token"} & set(got)


def test_a_query_string_goes_on(tmp_path: Path) -> None:
    with FakeEngine(kind="text") as engine, RunningProxy(tmp_path, engine) as proxy:
        url = proxy.base() + "/chat/completions?api-version=2024%2d10&x=%2F"
        assert proxy.post(url, json={"messages": []}).status_code == 200
        assert engine.calls[0].path == "/v1/chat/completions?api-version=2024%2d10&x=%2F"
        assert proxy.rows()[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("base", ["/x/e1/v1", "/x/e1", "/v1", ""])
def test_base_urls_with_and_without_v1_are_chat(tmp_path: Path, base: str) -> None:
    routes = {"/chat/completions": Answer(body=b'{"choices":[{"message":{"content":"hi"}}]}')}
    with FakeEngine(kind="text", routes=routes) as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.post(f"{proxy.url}{base}/chat/completions", json={"messages": []}).status_code == 200
        assert proxy.rows()[0].wire == "chat"


def test_an_answer_longer_than_may_be_held_passes_through_and_is_flagged(tmp_path: Path) -> None:
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 300_000}}]}
    script = Answer(body=json.dumps(said).encode())
    with (
        FakeEngine(script=script) as engine,
        RunningProxy(tmp_path, engine, **{"limits.answer": 100_000}) as proxy,
    ):
        got = proxy.chat()
        (row,) = proxy.rows()
    assert got.json() == said
    assert (row.outcome, row.capture_quality) == ("ok", "none")
    assert "answer_too_large" in row.capture_flags and row.response_bytes == len(got.content)


def test_streaming_works_without_identity(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(text="hello")) as engine, RunningProxy(tmp_path, engine) as proxy:
        said = proxy.post(proxy.url + "/v1/chat/completions", json={"messages": [], "stream": True})
    assert content_of(said) == "hello"
