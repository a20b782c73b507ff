"""Requests that are wrong, and how the client is told; what was asked is on record all the same."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gyre.proxy.calls import CallRecord
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.raw import answer, connection, head
from tests.proxy.reading import body_of
from tests.proxy.running import RunningProxy

CHAT = "/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", [CHAT, "/completions"])
@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"model": "m",}', "byte 14"),
        (b'{"model": "m"', "byte 13"),
        (b"", "byte 0"),
        (b"[1, 2]", "array"),
        (b"\xff\xfe", "byte 0"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_malformed_json_is_refused_with_its_place_and_recorded(
    tmp_path: Path, path: str, body: bytes, place: str
) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        refused = proxy.post(proxy.base() + path, content=body, headers=JSON)
        (row,) = proxy.rows()
        assert engine.calls == []
    error = refused.json()["error"]
    assert refused.status_code == 400 and place in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_json")
    assert (row.outcome, row.phase, row.http_status) == ("rejected", "request", 400)
    assert (row.raw_request or b"") == body[: 1 << 16] and row.request_bytes == len(body)
    assert refused.headers["x-gyre-call-id"] == row.call_id


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 10**400, "seed": 2**70, "top_k": -(2**65), "n": 1.5},
        {"seed": True, "stream": "yes", "temperature": "hot", "model": 7, "n": True},
        {"stream_options": "x", "logprobs": None, "prompt_cache_key": {"a": 1}, "unknown": [{}]},
    ],
)
def test_unknown_and_odd_fields_are_left_to_the_engine(tmp_path: Path, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "messages": [], **fields}).encode()
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.post(proxy.base() + CHAT, content=body, headers=JSON).status_code == 200
        rows = proxy.rows()
        sent = engine.calls[0].json
    assert {key: sent[key] for key in fields if key != "logprobs"} == {
        key: value for key, value in fields.items() if key != "logprobs"
    }
    assert body_of(rows, rows[0]) == body


@pytest.mark.parametrize("number", [b"1e400", b"-1e-400", b"123456789012345678901234567890"])
def test_numbers_that_no_float_holds_pass(tmp_path: Path, number: bytes) -> None:
    body = b'{"messages":[],"temperature":' + number + b',"seed":' + number + b"}"
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.post(proxy.base() + CHAT, content=body, headers=JSON).status_code == 200
        assert engine.calls[0].body.startswith(body[:-1])
        assert proxy.rows()[0].outcome == "ok"


def test_text_that_is_not_utf8_is_kept_byte_for_byte(tmp_path: Path) -> None:
    body = b'{"model":"\xff","messages":[{"role":"user","content":"caf\xe9"}],"user":"\xfe"}'
    with FakeEngine(script=Answer()) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.post(proxy.base() + CHAT, content=body, headers=JSON)
        rows = proxy.rows(2)
        assert engine.calls[0].body.startswith(body[:-1])
    assert (rows[-1].raw_request, rows[-1].http_status) == (body, 400)


def test_a_body_over_the_limit_is_refused_by_what_it_says_and_by_what_comes(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **{"limits.body": 1000}) as proxy:
        with connection(proxy.url) as sock:
            sock.sendall(head("POST", "/v1" + CHAT, "content-length: 1001"))
            said, _ = answer(sock)
        chunks = iter([b"x" * 600] * 2)
        came = proxy.post(proxy.base() + CHAT, content=chunks)
        fits = proxy.post(proxy.base() + CHAT, content=BODY.ljust(1000))
        rows = proxy.rows(3)
    assert (said, came.status_code, fits.status_code) == (413, 413, 200)
    assert came.json()["error"]["code"] == "request_too_large" and "1000" in came.json()["error"]["message"]
    assert [row.outcome for row in rows] == ["rejected", "rejected", "ok"]


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "gzip, zstd": lambda body: zstandard.compress(gzip.compress(body)),
}


@pytest.mark.parametrize("encoding", ENCODERS)
def test_compressed_bodies_are_decoded_for_the_record_and_the_engine(tmp_path: Path, encoding: str) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        headers = JSON | {"content-encoding": encoding}
        sent = proxy.post(proxy.base() + CHAT, content=ENCODERS[encoding](BODY), headers=headers)
        rows = proxy.rows()
        call = engine.calls[0]
    assert sent.status_code == 200
    assert "content-encoding" not in call.headers and call.json["messages"][0]["content"] == "hi"
    assert body_of(rows, rows[0]) == BODY and rows[0].capture_quality == "exact"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_several_members_or_frames_are_one_body(tmp_path: Path, encoding: str) -> None:
    body = ENCODERS[encoding](BODY[:20]) + ENCODERS[encoding](BODY[20:])
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        headers = JSON | {"content-encoding": encoding}
        assert proxy.post(proxy.base() + CHAT, content=body, headers=headers).status_code == 200
        assert body_of(proxy.rows(), proxy.rows()[0]) == BODY


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_decompression_bomb_is_refused(tmp_path: Path, encoding: str) -> None:
    bomb = ENCODERS[encoding](b" " * 50_000_000)
    assert len(bomb) < 100_000
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **{"limits.body": 1_000_000}) as proxy:
        refused = proxy.post(proxy.base() + CHAT, content=bomb, headers={"content-encoding": encoding})
        assert proxy.rows()[0].outcome == "rejected"
        assert engine.calls == []
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("how", ["garbage", "truncated", "empty", "trailing"])
def test_a_body_that_is_not_what_its_encoding_says_is_refused(
    tmp_path: Path, encoding: str, how: str
) -> None:
    whole = ENCODERS[encoding](BODY)
    body = {"garbage": BODY, "truncated": whole[:-4], "empty": b"", "trailing": whole + b"garbage"}[how]
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        refused = proxy.post(proxy.base() + CHAT, content=body, headers={"content-encoding": encoding})
        assert proxy.rows()[0].outcome == "rejected"
        assert engine.calls == []
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_content_encoding")
    assert encoding in refused.json()["error"]["message"]


def test_an_encoding_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        refused = proxy.post(proxy.base() + CHAT, content=BODY, headers={"content-encoding": "br"})
        assert proxy.rows()[0].outcome == "rejected"
    assert refused.status_code == 415 and "`br`" in refused.json()["error"]["message"]


def test_a_body_that_comes_slowly_and_in_pieces_is_whole(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        with connection(proxy.url) as sock:
            sock.sendall(head("POST", "/v1" + CHAT, f"content-length: {len(BODY)}"))
            for at in range(0, len(BODY), 10):
                # Longer than the watch for leaving clients waits before it listens.
                sock.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    sock.recv(1)
                sock.sendall(BODY[at : at + 10])
            sock.settimeout(10)
            status, _ = answer(sock)
        rows = proxy.rows()
        assert engine.calls[0].json["messages"][0]["content"] == "hi"
    assert status == 200 and body_of(rows, rows[0]) == BODY


def test_a_client_that_cuts_its_request_is_recorded_and_nothing_is_sent(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        with connection(proxy.url) as sock:
            sock.sendall(head("POST", "/x/e7/v1" + CHAT, f"content-length: {len(BODY)}") + BODY[:10])
        (row,) = proxy.rows()
        assert engine.calls == [] and proxy.worker.metrics.in_flight == 0
    assert cut(row) == ("e7", "client_gone", "request")


def cut(row: CallRecord) -> tuple[str, str, str]:
    return row.identity.execution_id, row.outcome, row.phase


def test_a_client_that_never_ends_its_request_reaches_the_total_limit(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **{"timeouts.total": 0.3}) as proxy:
        with connection(proxy.url) as sock:
            sock.sendall(head("POST", "/v1" + CHAT, f"content-length: {len(BODY)}") + BODY[:10])
            status, body = answer(sock)
        (row,) = proxy.rows()
        assert engine.calls == []
    assert status == 504 and b"total limit" in body
    assert (row.outcome, row.phase) == ("timeout", "total")


@pytest.mark.parametrize("path", ["*", "other", "http:x"])
def test_what_is_no_path_is_refused(tmp_path: Path, path: str) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy, connection(proxy.url) as sock:
        sock.sendall(head("OPTIONS", path, "connection: close"))
        status, _ = answer(sock)
        assert len(engine.requests) == 1
    assert status == 400
