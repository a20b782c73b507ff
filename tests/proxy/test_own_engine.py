"""gyre's own engine through the proxy: all it says is recorded, and a client sees what it asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.calls import CallRecord, OwnReport, Sampling, VersionSpan, WeightDigest
from gyre.proxy.capture.plain import capture_plain
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.streaming import SHOW_ALL
from tests.engines.fake import FakeEngine
from tests.engines.own import SEED
from tests.engines.script import Answer, Request
from tests.engines.shapes import Shape
from tests.engines.tokens import logprobs_for, render, tokenize
from tests.proxy.reading import body_of, content_of, events_of, ids_of, logprobs_of, prompt_of, response_of
from tests.proxy.running import RunningProxy, until_cut

HI = [{"role": "user", "content": "hi"}]
PROMPT = tokenize(render(HI))
TWO = Answer(
    text="abcdef", versions=[("3", 0, 4), ("4", 4, 7)], kv_versions=[("2", 0, 5), ("3", 5, 10)], spliced=5
)
"""Half of it is of the weights that came while it ran; its prompt was begun with older ones."""
KV = [VersionSpan("2", 0, 5), VersionSpan("3", 5, 10)]
BOTH = [VersionSpan("3", 0, 4), VersionSpan("4", 4, 7)]
STREAMED = pytest.mark.parametrize("stream", [False, True])


def own_of(row: CallRecord) -> OwnReport:
    assert row.own is not None
    return row.own


def raw_of(row: CallRecord) -> list[float] | None:
    packed = own_of(row).raw_logprobs
    return None if packed is None else [float(value) for value in np.frombuffer(packed, "<f4")]


def asked(proxy: RunningProxy, wire: str, **body: Any) -> httpx.Response:
    if wire == "chat":
        return proxy.chat(**body)
    return proxy.post(proxy.base() + "/completions", json={"model": "fake", "prompt": "once", **body})


@STREAMED
@pytest.mark.parametrize("wire", ["chat", "completions"])
def test_all_that_it_says_is_recorded(tmp_path: Path, wire: str, stream: bool) -> None:
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        asked(proxy, wire, stream=stream)
        (row,) = proxy.rows()
    assert (row.engine, row.outcome, row.capture_quality, row.capture_flags) == ("gyre", "ok", "exact", [])
    assert ids_of(row.prompt_suffix) == (PROMPT if wire == "chat" else tokenize("once"))
    assert ids_of(row.output) == TWO.output_ids
    assert (logprobs_of(row), row.logprob_quality) == (logprobs_for(TWO.output_ids), "sampled")
    assert row.version_spans == BOTH
    digests = [WeightDigest("3", "digest-of-3"), WeightDigest("4", "digest-of-4")]
    assert row.own == OwnReport(None, KV, digests, 5)
    assert row.sampling == Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=SEED)
    assert b"metadata" not in (row.response_meta or b"metadata")


@STREAMED
@pytest.mark.parametrize("wire", ["chat", "completions"])
def test_log_probabilities_are_of_the_distribution_sampled_from_and_the_raw_ones_beside_them(
    tmp_path: Path, wire: str, stream: bool
) -> None:
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        asked(proxy, wire, stream=stream, temperature=0.5, top_p=0.9, seed=11)
        (row,) = proxy.rows()
    raw = logprobs_for(TWO.output_ids)
    assert (logprobs_of(row), raw_of(row)) == ([value / 2 for value in raw], raw)
    assert (row.capture_quality, row.logprob_quality) == ("exact", "sampled")
    assert row.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=0, min_p=0.0, seed=11)


@STREAMED
def test_at_temperature_0_nothing_was_sampled_and_the_raw_ones_are_kept(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream, temperature=0)
        (row,) = proxy.rows()
    assert (logprobs_of(row), raw_of(row)) == (logprobs_for(TWO.output_ids), None)
    assert row.logprob_quality == "greedy"


@STREAMED
@pytest.mark.parametrize(
    ("answer", "quality", "flags"),
    [
        (Answer(text="abcdef", drop_logprobs=[2]), "ids_only", ["logprobs_incomplete"]),
        # Its versions are of ids that are not here.
        (Answer(text="abcdef", drop_ids=[2]), "incomplete", ["version_unsure", "tokens_incomplete"]),
    ],
)
def test_what_is_lost_is_flagged(
    tmp_path: Path, stream: bool, answer: Answer, quality: str, flags: list[str]
) -> None:
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream)
        (row,) = proxy.rows()
    assert (row.capture_quality, row.capture_flags) == (quality, flags)
    assert bool(row.version_spans) == (quality == "ids_only")


@STREAMED
@pytest.mark.parametrize(
    "versions",
    [
        [("3", 0, 4)],
        [("3", 0, 4), ("4", 5, 7)],
        [("3", 0, 4), ("4", 3, 7)],
        [("3", 1, 7)],
        [("3", 0, 6)],
        [("4", 4, 7), ("3", 0, 4)],
    ],
)
def test_versions_that_do_not_cover_every_id_once_are_unsure(
    tmp_path: Path, stream: bool, versions: list[tuple[str, int, int]]
) -> None:
    answer = Answer(text="abcdef", versions=versions)
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream)
        (row,) = proxy.rows()
    if stream and versions[0][0] == "4":
        # Chunks come in their order, whatever the order in which the whole is told.
        assert row.version_spans == BOTH
        return
    assert (row.capture_quality, row.capture_flags) == ("incomplete", ["version_unsure"])
    assert row.version_spans == []


@STREAMED
@pytest.mark.parametrize("odd", [7, "3", [{"version": "3"}], [{"version": "3", "start": -1, "end": 7}]])
def test_versions_of_another_shape_are_unsure(tmp_path: Path, stream: bool, odd: Any) -> None:
    answer = Answer(text="abcdef", choice_extra={"weight_versions": odd, "kv_versions": odd, "seed": "x"})
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream)
        (row,) = proxy.rows()
    assert (row.outcome, row.capture_quality) == ("ok", "incomplete")
    assert (row.capture_flags, own_of(row).kv_spans) == (["version_unsure"], None)


@STREAMED
def test_each_of_several_choices_has_its_own_versions_and_seed(tmp_path: Path, stream: bool) -> None:
    second = Answer(text="xyz", versions=[("3", 0, 1), ("4", 1, 4)], kv_versions=[("3", 0, 20)])
    answers = Answer(text=TWO.text, versions=TWO.versions, kv_versions=TWO.kv_versions, others=(second,))
    with FakeEngine(kind="gyre", script=answers) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(n=2, stream=stream, seed=40)
        rows = proxy.rows(2)
    assert [row.version_spans for row in rows] == [BOTH, [VersionSpan("3", 0, 1), VersionSpan("4", 1, 4)]]
    assert [own_of(row).kv_spans for row in rows] == [KV, [VersionSpan("3", 0, 20)]]
    assert [row.sampling.seed for row in rows] == [40, 41]
    assert [row.capture_quality for row in rows] == ["exact", "exact"]


@STREAMED
@pytest.mark.parametrize("wire", ["chat", "completions"])
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"stream_options": {"include_usage": True}}])
def test_a_client_sees_what_it_would_see_without_the_proxy(
    tmp_path: Path, wire: str, stream: bool, more: dict[str, Any]
) -> None:
    if "stream_options" in more and not stream:
        return
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        path = "/chat/completions" if wire == "chat" else "/completions"
        body = {"model": "m", "messages": HI, "prompt": "once", "stream": stream, "temperature": 0.5, **more}
        if wire == "chat" and "logprobs" in body:
            body["logprobs"] = True
        direct = httpx.post(f"{engine.url}/v1{path}", json=body)
        proxied = httpx.post(proxy.base() + path, json=body)
    assert proxied.content == direct.content.replace(b"cmpl-1", b"cmpl-2")
    assert (b"sampling_logprob" in proxied.content) == ("logprobs" in more)


@STREAMED
@pytest.mark.parametrize("wire", ["chat", "completions"])
def test_a_client_that_asks_for_ids_sees_it_all(tmp_path: Path, wire: str, stream: bool) -> None:
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        path = "/chat/completions" if wire == "chat" else "/completions"
        body = {"model": "m", "messages": HI, "prompt": "once", "stream": stream, "return_token_ids": True}
        body |= {"logprobs": 1} if wire == "completions" else {"logprobs": True}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        direct = httpx.post(f"{engine.url}/v1{path}", json=body)
        proxied = httpx.post(proxy.base() + path, json=body)
        (row,) = proxy.rows()
    assert proxied.content == direct.content.replace(b"cmpl-1", b"cmpl-2")
    assert b'"kv_versions"' in proxied.content and b'"metadata"' in proxied.content
    assert (row.capture_quality, row.version_spans) == ("exact", BOTH)


@STREAMED
def test_a_spaced_answer_is_stripped_as_well(tmp_path: Path, stream: bool) -> None:
    """The slow way, for a layout that cannot be cut in place."""
    hidden = {"token_ids": [1], "weight_versions": [{"version": "3", "start": 0, "end": 1}], "seed": 4}
    said = {"delta" if stream else "message": {"role": "assistant", "content": "a"}}
    choice = {**hidden, "index": 0, **said, "finish_reason": "stop"}
    spaced = json.dumps({"metadata": {"weight_version": "3"}, "choices": [choice], "prompt_token_ids": [5]})
    body = f"data: {spaced}\n\ndata: [DONE]\n\n" if stream else spaced
    kind = "text/event-stream" if stream else "application/json"
    answer = Answer(body=body.encode(), headers={"content-type": kind})
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        shown = proxy.chat(stream=stream)
        (row,) = proxy.rows()
    (seen,) = events_of(shown) if stream else [shown.json()]
    assert seen == {"choices": [{"index": 0, **said, "finish_reason": "stop"}]}
    assert (ids_of(row.output), row.version_spans) == ([1], [VersionSpan("3", 0, 1)])


def test_a_chunk_that_only_names_weights_is_not_shown(tmp_path: Path) -> None:
    events = [
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[],"metadata":{"weight_digests":{"4":"four"}}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    ]
    answer = Answer(body=events, headers={"content-type": "text/event-stream"})
    with FakeEngine(kind="gyre", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        shown = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert shown.content == events[0] + events[2]
    assert own_of(row).weight_digests == [WeightDigest("4", "four")]


GIVEN = tokenize("abc")


@STREAMED
@pytest.mark.parametrize("wire", ["chat", "completions"])
def test_an_answer_that_goes_on_has_what_was_given_in_its_prompt(
    tmp_path: Path, wire: str, stream: bool
) -> None:
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        asked(proxy, wire, stream=stream, output_token_ids=GIVEN)
        (row,) = proxy.rows()
        body = body_of([row], row)
        assert body == engine.calls[0].body or b'"output_token_ids"' in body
    prompt = PROMPT if wire == "chat" else tokenize("once")
    assert ids_of(row.prompt_suffix) == [*prompt, *GIVEN]
    assert ids_of(row.output) == TWO.output_ids[3:]
    assert logprobs_of(row) == logprobs_for(TWO.output_ids)[3:]
    assert row.version_spans == [VersionSpan("3", 0, 1), VersionSpan("4", 1, 4)]
    assert own_of(row).kv_spans == KV
    assert (row.capture_quality, row.capture_flags) == ("exact", [])
    if wire == "chat":
        assert response_of(row)["content"] == ("def" if stream else "abcdef")


def test_an_answer_that_repeats_other_ids_than_were_given_is_flagged(tmp_path: Path) -> None:
    other = Answer(text="abcdef", choice_extra={"token_ids": tokenize("xbcdef<|im_end|>")})
    with FakeEngine(kind="gyre", script=other) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(output_token_ids=GIVEN)
        (row,) = proxy.rows()
    assert (row.capture_quality, row.capture_flags) == ("incomplete", ["given_ids_differ"])


def test_an_answer_that_was_complete_already_adds_nothing(tmp_path: Path) -> None:
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(output_token_ids=TWO.output_ids)
        (row,) = proxy.rows()
    assert ids_of(row.prompt_suffix) == [*PROMPT, *TWO.output_ids]
    assert (row.output, row.version_spans, row.capture_quality) == (b"", [], "exact")


def test_another_engine_does_not_know_of_given_ids(tmp_path: Path) -> None:
    with FakeEngine(kind="vllm", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(output_token_ids=GIVEN)
        (row,) = proxy.rows()
    assert (ids_of(row.prompt_suffix), row.capture_quality, row.own) == (PROMPT, "exact", None)


def test_a_prompt_of_ids_is_stored_once(tmp_path: Path) -> None:
    ids = list(range(100, 300))
    with FakeEngine(kind="gyre", script=TWO) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(prompt_token_ids=ids)
        sent = proxy.chat(prompt_token_ids=[*ids, *TWO.output_ids, 101]).request.content
        rows = proxy.rows(2)
    assert body_of(rows, rows[1]) == sent
    assert len(rows[1].request or b"") < 200 and ids_of(rows[1].prompt_suffix) == [101]
    assert prompt_of(rows, rows[1]) == [*ids, *TWO.output_ids, 101]


@STREAMED
@pytest.mark.parametrize("reason", ["abort", "moved", "error"])
@pytest.mark.parametrize("kind", ["gyre", "vllm"])
def test_an_answer_that_the_engine_abandoned_is_none(
    tmp_path: Path, kind: Any, reason: str, stream: bool
) -> None:
    script = Answer(text="abcdef", finish_reason=reason)
    with FakeEngine(kind=kind, script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        if stream:
            came, cut = until_cut(proxy)
            assert cut and content_of(came) == "abcdef" and reason.encode() not in came
        else:
            shown = proxy.chat()
            assert shown.status_code == 502 and "abandoned" in shown.json()["error"]["message"]
        (row,) = proxy.rows()
    assert (row.outcome, row.finish_reason) == ("upstream_cut", reason)
    assert f"`{reason}`" in (row.error or "")
    # What was sampled is all there: a later call may go on from it.
    assert ids_of(row.output) == script.output_ids
    assert row.capture_quality == "exact"


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Text in pieces of any size, sampled by versions that change anywhere."""
    text = draw(st.text("abé<😀\n", max_size=12))
    count = len(tokenize(text)) + 1
    ends = sorted(draw(st.sets(st.integers(1, count), max_size=4)) | {count})
    spans = [(str(i), start, end) for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
    return Answer(text=text, versions=spans, piece=draw(st.integers(1, 5)), spliced=draw(st.integers(0, 3)))


@given(
    st.lists(answers(), min_size=1, max_size=3),
    st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
    st.sampled_from([0, 0.5, 1]),
)
def test_a_stream_says_what_the_plain_answer_says(said: list[Answer], path: str, temperature: float) -> None:
    answer = replace(said[0], others=tuple(said[1:]))
    asked: dict[str, Any] = {"n": len(said), "temperature": temperature, "return_token_ids": True}
    asked |= {"messages": HI, "logprobs": True} if "chat" in path else {"prompt": "once", "logprobs": 0}
    body = json.dumps(asked | {"stream_options": {"include_usage": True}}).encode()
    shape = Shape(
        "gyre", "m", 1, Request(method="POST", path=path, headers={}, body=body, reused=False), answer
    )
    plain, _ = capture_plain(Engine.GYRE, SHOW_ALL, shape.plain())
    stream = StreamCapture(Engine.GYRE, SHOW_ALL, "chat" in path, len(said))
    for event in shape.events():
        stream.forward(event)
    streamed = stream.finish(complete=True)
    for one, other in zip(plain.choices, streamed.choices, strict=True):
        assert (one.ids, one.spans, one.version_spans) == (other.ids, other.spans, other.version_spans)
        assert (one.logprobs, one.sampling_logprobs) == (other.logprobs, other.sampling_logprobs)
        assert (one.kv_spans, one.seed) == (other.kv_spans, other.seed)
    assert plain.sampling == streamed.sampling and plain.spliced_tokens == streamed.spliced_tokens
    # A stream names the versions of the first choice; weights of others are those of the same names.
    assert plain.weight_digests.items() <= streamed.weight_digests.items()
