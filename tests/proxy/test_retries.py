"""The same request again: a new sample, unless the harness says that it is a retry and replays are on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.proxy.calls import CallRecord
from gyre.proxy.replay import Replays, Stored
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.reading import ids_of, message_hashes
from tests.proxy.running import RunningProxy, until_cut
from tests.proxy.streams import DONE

RETRY = {"x-stainless-retry-count": "1"}
ANSWERS = [Answer(text="first"), Answer(text="second")]
ON: dict[str, Any] = {"replay_retries": True}


def said(rows: list[CallRecord]) -> list[tuple[str, str | None, bool]]:
    return [(row.outcome, row.delivery_of, row.output is not None) for row in rows]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("replays", [False, True])
def test_the_same_body_without_a_mark_is_sampled_again(tmp_path: Path, stream: bool, replays: bool) -> None:
    flags: dict[str, Any] = {"replay_retries": replays}
    with FakeEngine(script=ANSWERS) as engine, RunningProxy(tmp_path, engine, **flags) as proxy:
        answers = [proxy.chat(stream=stream) for _ in range(2)]
        rows = proxy.rows(2)
        assert len(engine.calls) == 2
    assert answers[0].content != answers[1].content
    assert said(rows) == [("ok", None, True)] * 2
    assert [ids_of(row.output) for row in rows] == [answer.output_ids for answer in ANSWERS]


@pytest.mark.parametrize("stream", [False, True])
def test_a_marked_retry_gets_the_stored_answer_and_is_a_delivery(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(script=ANSWERS) as engine, RunningProxy(tmp_path, engine, **ON) as proxy:
        first = proxy.chat(stream=stream)
        again = proxy.chat(stream=stream, headers=RETRY)
        rows = proxy.rows(2)
        assert len(engine.calls) == 1
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["x-gyre-call-id"] != first.headers["x-gyre-call-id"]
    assert said(rows) == [("ok", None, True), ("ok", rows[0].call_id, False)]
    assert (rows[1].identity.retry_count, rows[1].capture_quality, rows[1].usage) == (1, "none", None)
    assert message_hashes(rows, rows[1]) == message_hashes(rows, rows[0])


def test_without_replays_a_marked_retry_is_sampled_again_and_known_as_one(tmp_path: Path) -> None:
    with FakeEngine(script=ANSWERS) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat()
        proxy.chat(headers=RETRY)
        rows = proxy.rows(2)
        assert len(engine.calls) == 2
    assert [row.identity.retry_count for row in rows] == [None, 1]
    assert said(rows) == [("ok", None, True)] * 2


def test_a_retry_of_something_else_is_sampled(tmp_path: Path) -> None:
    with FakeEngine(script=ANSWERS) as engine, RunningProxy(tmp_path, engine, **ON) as proxy:
        proxy.chat("one", temperature=1)
        proxy.chat("one", temperature=0.5, headers=RETRY)
        proxy.chat("two", temperature=1, headers=RETRY)
        assert len(engine.calls) == 3
        assert [row.delivery_of for row in proxy.rows(3)] == [None] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", [Answer(status=500, text="oops"), Answer(text="x" * 40, cut_after=1)])
def test_an_answer_that_failed_is_never_replayed(tmp_path: Path, first: Answer, stream: bool) -> None:
    script = [first, Answer(text="fine")]
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine, **ON) as proxy:
        until_cut(proxy, stream=stream)
        again = proxy.chat(stream=stream, headers=RETRY)
        assert len(engine.calls) == 2
    assert b"fine" in again.content


def test_a_reply_that_was_lost_on_its_way_is_delivered_by_the_retry(tmp_path: Path) -> None:
    """The answer is whole and recorded when the client goes without having read it."""
    body = {"model": "fake", "messages": [], "stream": True}
    with FakeEngine(script=Answer(text="x" * 400)) as engine, RunningProxy(tmp_path, engine, **ON) as proxy:
        url = proxy.base() + "/chat/completions"
        with httpx.stream("POST", url, json=body) as lost:
            next(lost.iter_raw())
            proxy.rows()
        again = proxy.post(url, json=body, headers=RETRY)
        rows = proxy.rows(2)
        assert len(engine.calls) == 1
    assert again.content.endswith(DONE)
    assert rows[1].delivery_of == rows[0].call_id


def test_stored_answers_are_bounded_and_the_oldest_go_first() -> None:
    replays = Replays()
    for number in range(100):
        for text in (b"x", b"y"):
            replays.put(("e1", b"%d" % number), Stored(f"c{number}", 200, {}, text * (1 << 20)))
    kept = [number for number in range(100) if replays.get(("e1", b"%d" % number))]
    assert kept == list(range(36, 100))
