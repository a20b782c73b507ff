"""Plain answers of engines: good ones pass unchanged, bad ones become an error that names the engine."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.calls import CallRecord
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request
from tests.proxy.reading import content_of, ids_of, response_of
from tests.proxy.running import RunningProxy, until_cut
from tests.proxy.streams import chunk, streamed

HTML = b"<html><body>502 Bad Gateway</body></html>"
WHOLE: dict[str, Any] = {
    "id": "x",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}],
}


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("phase", "script"),
    [
        ("done", Answer(body=b"not json")),
        ("done", Answer(body=HTML, headers={"content-type": "text/html"})),
        ("done", Answer(body=b"[]")),
        ("done", Answer(body=b'{"object":"chat.completion"}')),
        ("done", Answer(body=b'{"choices":"none"}')),
        ("done", Answer(body=b'{"choices":null}')),
        ("done", Answer(body=b'{"choices":[{"index":0}]')),
        ("done", Answer(body=b'{"choices":[],"x":' + NESTED + b"}")),
        ("done", Answer(body=b"")),
        ("first_byte", Answer(raw=b"SSH-2.0-OpenSSH_9.2\r\n")),
        ("first_byte", Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 9x\r\n\r\n{}")),
        ("first_byte", Answer(raw=b"\x00\xff\xfe" * 50 + b"\r\n\r\n")),
        ("first_byte", Answer(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n")),
    ],
)
def test_an_answer_that_is_garbage_is_a_502_that_names_the_backend(
    tmp_path: Path, phase: str, script: Answer
) -> None:
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat()
        (row,) = proxy.rows()
        assert len(engine.calls) == 1
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (502, "proxy_error")
    assert f"127.0.0.1:{engine.port}" in error["message"] and f"127.0.0.1:{engine.port}" in (row.error or "")
    assert row.phase == phase
    assert row.outcome == "upstream_error" or (row.outcome, phase) == ("upstream_cut", "first_byte")


def test_what_cannot_be_read_is_kept_for_the_person_who_must_find_out(tmp_path: Path) -> None:
    script = Answer(body=HTML + b"x" * 100_000, headers={"content-type": "text/html"})
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat()
        (row,) = proxy.rows()
    assert row.raw_response == (HTML + b"x" * 100_000)[: 1 << 16]
    assert row.response_bytes == len(HTML) + 100_000


@pytest.mark.parametrize(
    "odd",
    [
        {"token_ids": ["x"]},
        {"token_ids": [99999999999]},
        {"token_ids": "none"},
        {"logprobs": {"content": "none"}},
        {"logprobs": {"content": [{"logprob": "x"}]}},
        {"logprobs": 7},
        {"message": "text"},
        {"message": None},
    ],
)
def test_odd_fields_are_passed_on_and_never_taken_for_ids(tmp_path: Path, odd: dict[str, Any]) -> None:
    body = {**WHOLE, "choices": [{**WHOLE["choices"][0], **odd}], "prompt_token_ids": [1, 2]}
    script = Answer(body=json.dumps(body, separators=(",", ":")).encode())
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(return_token_ids=True, logprobs=True)
        (row,) = proxy.rows()
    assert answer.json() == body
    assert (row.outcome, row.capture_quality) == ("ok", "incomplete")
    assert "output_ids_missing" in row.capture_flags and row.output is None


@pytest.mark.parametrize(
    "usage",
    [b'"none"', b"[]", b'{"prompt_tokens":1e999}', b'{"prompt_tokens":"3"}', b'{"completion_tokens":-1}'],
)
def test_odd_usage_is_passed_on_and_kept(tmp_path: Path, usage: bytes) -> None:
    body = json.dumps(WHOLE).encode()[:-1] + b',"usage":' + usage + b"}"
    with FakeEngine(script=Answer(body=body)) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(return_token_ids=True, logprobs=True)
        (row,) = proxy.rows()
    assert answer.content == body
    assert (row.outcome, row.usage) == ("ok", usage)


def test_the_engines_errors_reach_the_client_as_they_are(tmp_path: Path) -> None:
    script = [
        Answer(status=429, text="slow down", headers={"retry-after": "7"}),
        Answer(status=500, text="oops"),
        Answer(status=529, body=b"overloaded", headers={"content-type": "text/plain"}),
        Answer(status=404, text="no such model"),
    ]
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answers = [proxy.chat() for _ in script]
        rows = proxy.rows(4)
    assert [answer.status_code for answer in answers] == [429, 500, 529, 404]
    assert answers[0].headers["retry-after"] == "7" and answers[0].json()["error"]["message"] == "slow down"
    assert (answers[2].text, answers[2].headers["content-type"]) == ("overloaded", "text/plain")
    assert [(row.outcome, row.http_status) for row in rows] == [
        ("upstream_error", s) for s in (429, 500, 529, 404)
    ]
    assert rows[1].raw_response == answers[1].content


def refusing_bad(request: Request) -> Answer:
    return Answer(status=400, text="`bad` is not a field") if "bad" in request.json else Answer(text="fine")


def test_a_retry_with_an_invalid_field_is_refused_and_changes_no_history(tmp_path: Path) -> None:
    hi = [{"role": "user", "content": "hi"}]
    with FakeEngine(script=refusing_bad) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(messages=hi)
        refused = proxy.chat(messages=hi, bad=1, headers={"x-stainless-retry-count": "1"})
        proxy.chat(messages=[*hi, {"role": "assistant", "content": "fine"}, *hi])
        rows = proxy.rows(4)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "`bad` is not a field")
    bad = [row for row in rows if row.http_status == 400]
    assert all((row.outcome, row.output, row.prompt_suffix) == ("upstream_error", None, None) for row in bad)
    assert rows[-1].outcome == "ok" and rows[-1].parent_call_id == rows[0].call_id


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000",
            "BadRequestError",
        ),
        (
            "the request exceeds the available context size (4096 tokens), try increasing it",
            "exceed_context_size_error",
        ),
        (
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "BadRequestError",
        ),
    ],
)
def test_a_context_overflow_has_the_code_by_which_agents_compact(
    tmp_path: Path, message: str, kind: str
) -> None:
    said = {"error": {"message": message, "type": kind, "code": 400, "n_ctx": 4096}}
    script = Answer(status=400, body=json.dumps(said).encode())
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat()
        rows = proxy.rows()
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert message in error["message"] and "maximum context length" in error["message"]
    assert error["n_ctx"] == 4096
    assert rows[-1].raw_response == script.body


@pytest.mark.parametrize("stream", [False, True])
def test_a_gzip_answer_that_nobody_asked_for_is_read(tmp_path: Path, stream: bool) -> None:
    script = Answer(text="hello", gzip="whole")
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=stream, headers={"accept-encoding": "gzip, br"})
        (row,) = proxy.rows()
        assert engine.calls[0].headers["accept-encoding"] == "identity"
    said = content_of(answer) if stream else answer.json()["choices"][0]["message"]["content"]
    assert said == "hello" and "content-encoding" not in answer.headers
    assert (row.outcome, row.capture_quality) == ("ok", "exact")
    assert ids_of(row.output) == script.output_ids


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_truncated_gzip_answer_the_decoded_part_is_kept_and_flagged(
    tmp_path: Path, stream: bool
) -> None:
    packer = zlib.compressobj(wbits=31)
    first = chunk({"content": "hello"}) if stream else json.dumps(WHOLE).encode()
    kind = "text/event-stream" if stream else "application/json"
    body = packer.compress(first) + packer.flush(zlib.Z_SYNC_FLUSH)
    headers = {"content-type": kind, "content-encoding": "gzip"}
    with (
        FakeEngine(script=Answer(body=body, headers=headers)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        came, broken = until_cut(proxy, stream=stream)
        (row,) = proxy.rows()
    assert broken if stream else b"upstream_cut" in came
    assert row.outcome == "upstream_cut" and "cut" in row.capture_flags
    assert row.raw_response == first if not stream else response_of(row)["content"] == "hello"


def test_bytes_that_are_no_gzip_are_an_error(tmp_path: Path) -> None:
    script = Answer(body=gzip.compress(b"{}")[5:], headers={"content-encoding": "gzip"})
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat()
    assert answer.status_code == 502 and "compressed" in answer.json()["error"]["message"]


def test_headers_of_any_bytes_are_passed_on(tmp_path: Path) -> None:
    headers = {"x-latin": "caf\xe9", "x-request-id": "7", "keep-alive": "timeout=5"}
    with FakeEngine(script=Answer(headers=headers)) as engine, RunningProxy(tmp_path, engine) as proxy:
        for stream in (False, True):
            answer = proxy.chat(stream=stream)
            assert (b"x-latin", b"caf\xe9") in answer.headers.raw
            assert answer.headers["x-request-id"] == "7" and "keep-alive" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spaced", [False, True])
def test_model_names_are_mapped_both_ways(tmp_path: Path, stream: bool, spaced: bool) -> None:
    def reply(request: Request) -> Answer:
        if not spaced:
            return Answer(text="hi")
        if stream:
            return streamed(
                chunk({"content": "hi"}, finish_reason="stop", top={"model": "q/8b"}).replace(b":", b": ")
            )
        return Answer(body=json.dumps({**WHOLE, "model": "q/8b"}).encode())

    with FakeEngine(script=reply) as engine:
        backends = [{"url": engine.url, "models": {"gpt-5": "q/8b"}}]
        with RunningProxy(tmp_path, backends=backends) as proxy:
            answer = proxy.chat(model="gpt-5", stream=stream)
            proxy.chat(model="other")
            row, other = proxy.rows(2)
        assert [call.json["model"] for call in engine.calls] == ["q/8b", "other"]
    assert b"q/8b" not in answer.content and b"gpt-5" in answer.content
    assert names(row) == ("gpt-5", "q/8b") and names(other) == ("other", "other")


def names(row: CallRecord) -> tuple[str | None, str | None]:
    return row.model, row.upstream_model
