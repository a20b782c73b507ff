"""Streams: forwarded event by event, ended in order, and recorded whatever becomes of them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from gyre.proxy.calls import CallRecord
from tests.engines.fake import FakeEngine
from tests.engines.routes import Kind
from tests.engines.script import Answer
from tests.proxy.reading import content_of, events_of, ids_of, response_of
from tests.proxy.running import RunningProxy, until_cut
from tests.proxy.streams import DONE, chunk, event, sent, streamed

STREAM: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def opened(proxy: RunningProxy, **fields: Any) -> Any:
    """A streaming call whose events are read as they come."""
    return httpx.stream("POST", proxy.base() + "/chat/completions", json=STREAM | fields, timeout=10)


def timed_events(count: int) -> Iterator[bytes]:
    """Events that say when they were made."""
    for _ in range(count):
        time.sleep(0.005)
        yield chunk({"content": f"{time.monotonic():.6f}"})
    yield chunk({}, finish_reason="stop")
    yield DONE


def test_each_event_is_forwarded_when_it_comes(tmp_path: Path) -> None:
    script = Answer(body=timed_events(60), headers={"content-type": "text/event-stream"})
    delays = []
    with (
        FakeEngine(script=script) as engine,
        RunningProxy(tmp_path, engine) as proxy,
        opened(proxy) as answer,
    ):
        for part in answer.iter_raw():
            now = time.monotonic()
            made = [e["choices"][0]["delta"].get("content") for e in events_of(part)]
            delays += [now - float(text) for text in made if text]
    assert len(delays) == 60
    assert statistics.median(delays) < 0.01


def test_the_first_event_is_there_while_the_engine_still_works(tmp_path: Path) -> None:
    script = Answer(text="abcdefgh", hang_after=2)
    with (
        FakeEngine(script=script) as engine,
        RunningProxy(tmp_path, engine) as proxy,
        opened(proxy) as answer,
    ):
        first = next(answer.iter_raw())
        assert engine.open_streams == 1
    assert events_of(first)[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize("split", [1, 3, 0])
def test_comments_of_the_engine_stay_between_whole_events(tmp_path: Path, split: int) -> None:
    script = Answer(text="grüße euch", comment=b": ping\n\n", split=split)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    parts = answer.content.split(b"\n\n")
    assert parts.pop() == b""
    assert all(part == b": ping" or part.startswith(b"data: ") for part in parts)
    assert parts.count(b": ping") >= 5
    assert content_of(answer) == "grüße euch" and row.capture_quality == "exact"


def test_what_is_hidden_leaves_no_empty_event(tmp_path: Path) -> None:
    for kind in get_args(Kind):
        with FakeEngine(kind=kind) as engine, RunningProxy(tmp_path / kind, engine) as proxy:
            answer = proxy.chat(stream=True)
        assert all(part.startswith(b"data: {") for part in answer.content.split(b"\n\n")[:-2])
        assert answer.content.endswith(b"\n\n" + DONE) and b"\n\n\n" not in answer.content


def test_named_events_keep_their_name(tmp_path: Path) -> None:
    named = b"event: progress\nid: 7\n" + chunk({"content": "a"}, token_ids=[5], logprobs={"content": []})
    foreign = b"event: ping\ndata: {}\n\n"
    script = streamed(named, foreign, chunk({}, finish_reason="stop"))
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert b"event: progress\nid: 7\ndata: {" in answer.content and foreign in answer.content
    assert b"token_ids" not in answer.content
    assert ids_of(row.output) == [5]


def test_events_in_an_unusual_layout_are_captured_and_stripped(tmp_path: Path) -> None:
    choice = {
        "index": 0,
        "delta": {"content": "a"},
        "token_ids": [5, 6],
        "logprobs": {"content": [{"logprob": -1.0}]},
    }
    spaced = json.dumps({"prompt_token_ids": [1, 2], "choices": [choice]}, indent=1)
    crlf = b"".join(b"data: " + line.encode() + b"\r\n" for line in spaced.split("\n")) + b"\r\n"
    script = streamed(crlf, chunk({}, finish_reason="stop"))
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert b"token_ids" not in answer.content and content_of(answer) == "a"
    assert (ids_of(row.prompt_suffix), ids_of(row.output)) == ([1, 2], [5, 6])


def test_an_engine_that_dies_cuts_the_stream_for_the_client_too(tmp_path: Path) -> None:
    """As without us: an agent goes on from a broken connection, while an error event ends it."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    for script in (Answer(text=letters, cut_after=5), Answer(text=letters, cut_bytes=900)):
        with (
            FakeEngine(script=script) as engine,
            RunningProxy(tmp_path / str(script.cut_after), engine) as proxy,
        ):
            came, broken = until_cut(proxy)
            (row,) = proxy.rows()
        assert broken and b"data: " in came and b"[DONE]" not in came and b"error" not in came
        assert row.error and row.backend and row.backend in row.error
        assert_cut(row, script, "upstream_cut")


def assert_cut(row: CallRecord, script: Answer, outcome: str) -> None:
    """What came is kept, and known to be only a part."""
    assert (row.outcome, row.capture_quality) == (outcome, "incomplete")
    assert "cut" in row.capture_flags
    ids, text = ids_of(row.output), response_of(row)["content"]
    assert 0 < len(ids) < len(script.output_ids) and ids == script.output_ids[: len(ids)]
    assert text and script.text.startswith(text)


def test_a_stream_that_ends_without_done_but_with_a_reason_is_whole(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(text="abc", done=False)) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert b"[DONE]" not in answer.content and "error" not in answer.text
    assert (row.outcome, row.capture_quality) == ("ok", "exact")


def test_a_stream_that_ends_without_a_reason_is_cut(tmp_path: Path) -> None:
    for number, script in enumerate([streamed(chunk({"content": "a"}), done=False), sent([])]):
        with FakeEngine(script=script) as engine, RunningProxy(tmp_path / str(number), engine) as proxy:
            came, broken = until_cut(proxy)
            (row,) = proxy.rows()
        assert row.outcome == "upstream_cut"
        assert broken if number == 0 else b"upstream_cut" in came


def test_of_two_choices_one_without_an_end_means_a_cut(tmp_path: Path) -> None:
    script = streamed(chunk({"content": "a"}, finish_reason="stop"), done=False)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        assert until_cut(proxy, n=2)[1]
        assert proxy.rows()[0].outcome == "upstream_cut"


def test_a_last_event_without_its_blank_line_counts(tmp_path: Path) -> None:
    for number, tail in enumerate([b"", b"data: [DONE]"]):
        last = chunk({"content": "b"}, finish_reason="stop")
        script = sent([chunk({"content": "a"}), last if tail else last.strip(), tail])
        with FakeEngine(script=script) as engine, RunningProxy(tmp_path / str(number), engine) as proxy:
            answer = proxy.chat(stream=True)
            assert content_of(answer) == "ab"
            assert proxy.rows()[0].outcome == "ok"


def test_the_engines_own_error_event_reaches_the_client_and_the_record(tmp_path: Path) -> None:
    error = event({"error": {"message": "out of memory", "type": "server_error", "code": 500}})
    script = streamed(chunk({"content": "a"}), error)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert error in answer.content and answer.content.count(b'"error"') == 1
    assert (row.outcome, row.error and "out of memory" in row.error) == ("upstream_error", True)
    assert response_of(row)["content"] == "a"


def test_a_client_that_leaves_stops_the_engine_within_a_second(tmp_path: Path) -> None:
    script = Answer(text="x" * 4000, gap=0.02)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        with opened(proxy) as answer:
            parts = answer.iter_raw()
            got = b""
            while got.count(b"\n\n") < 4:
                got += next(parts)
        left = time.monotonic()
        engine.wait_until(lambda e: e.open_streams == 0)
        assert engine.disconnects[0] - left < 1
        (row,) = proxy.rows()
    assert_cut(row, script, "client_gone")


def test_a_client_that_leaves_before_the_first_byte_is_noticed_too(tmp_path: Path) -> None:
    for stream in (True, False):
        with (
            FakeEngine(script=Answer(hang_after=0)) as engine,
            RunningProxy(tmp_path / str(stream), engine) as proxy,
        ):
            with pytest.raises(httpx.ReadTimeout):
                body = STREAM | {"stream": stream}
                httpx.post(proxy.base() + "/chat/completions", json=body, timeout=0.1)
            engine.wait_until(lambda e: bool(e.disconnects))
            (row,) = proxy.rows()
        assert (row.outcome, row.phase) == ("client_gone", "first_byte")


def test_done_comes_only_after_the_row_is_in_the_journal(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(text="abc")) as engine, RunningProxy(tmp_path, engine) as proxy:
        for number in range(1, 6):
            got = b""
            with opened(proxy) as answer:
                for part in answer.iter_raw():
                    got += part
                    if DONE in got:
                        break
                assert len(rows_now(proxy)) == number


def test_a_plain_answer_comes_only_after_the_row_is_in_the_journal(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(text="abc")) as engine, RunningProxy(tmp_path, engine) as proxy:
        for number in range(1, 6):
            with opened(proxy, stream=False) as answer:
                next(answer.iter_raw())
                assert len(rows_now(proxy)) == number


def rows_now(proxy: RunningProxy) -> list[CallRecord]:
    return [record for record in proxy.records() if isinstance(record, CallRecord)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"data: not json\n\n",
        b"data: [1]\n\n",
        b'data: {"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n",
        b"data: \xff\xfe\n\n",
        b'data: {"choices":[{"index":0,"delta":"b"}]}\n\n',
        b'data: {"choices":[{"index":-1,"delta":{"content":"b"}}]}\n\n',
        b'data: {"choices":[{"index":99999999999999999999,"delta":{"content":"b"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"token_ids":["x"]}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"token_ids":[99999999999]}]}\n\n',
    ],
)
def test_an_unreadable_event_is_passed_on_and_flagged(tmp_path: Path, garbage: bytes) -> None:
    answer, row = through(tmp_path, garbage)
    assert "event_unreadable" in row.capture_flags
    assert b"token_ids" in garbage or garbage in answer


@pytest.mark.parametrize(
    "odd",
    [
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":["x"]}}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":1e999}}\n\n',
        b'data: {"choices":[],"usage":"none"}\n\n',
        b'data:  {"prompt_token_ids" : [1]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"logprobs":{"content":[{"logprob":"x"}]}}]}\n\n',
    ],
)
def test_an_odd_event_breaks_nothing(tmp_path: Path, odd: bytes) -> None:
    through(tmp_path, odd)


def through(logs: Path, event: bytes) -> tuple[bytes, CallRecord]:
    """The answer and the row of a stream with this event in its middle."""
    whole = [chunk({"content": "a"}, token_ids=[5]), event, chunk({"content": "c"}, finish_reason="stop")]
    with FakeEngine(script=streamed(*whole)) as engine, RunningProxy(logs, engine) as proxy:
        answer = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert answer.content.endswith(DONE) and b'"error"' not in answer.content
    assert row.outcome == "ok" and row.capture_quality != "exact"
    assert response_of(row)["content"] == "ac"
    assert ids_of(row.output) == [5]
    return answer.content, row


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_says_nothing_is_counted_loudly(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(script=Answer(text="")) as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.chat(stream=stream).status_code == 200
        (row,) = proxy.rows()
        assert proxy.worker.metrics.flags["no_content"] == 1
        page = httpx.get(proxy.url + "/metrics").text
    assert row.outcome == "ok" and "no_content" in row.capture_flags
    assert 'flag="no_content"} 1.0' in page
