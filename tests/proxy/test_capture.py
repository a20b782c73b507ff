"""Token ids, log-probabilities and versions: exact, or flagged with the reason; never padded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.proxy.calls import VersionSpan
from gyre.proxy.commands import SetVersion
from tests.engines.fake import FakeEngine
from tests.engines.routes import Kind
from tests.engines.script import Answer, ToolCall
from tests.engines.tokens import logprobs_for, render, tokenize
from tests.proxy.reading import content_of, events_of, ids_of, logprobs_of, prompt_of, response_of
from tests.proxy.running import RunningProxy
from tests.proxy.streams import chunk, streamed

HI = [{"role": "user", "content": "hi"}]
TOOLS = (ToolCall("grep", '{"q": "é" ,"n":1.0}'), ToolCall("run", '{"cmd":"ls"}'))
RICH = Answer(text="grüße", reasoning="so", tool_calls=TOOLS)


@pytest.mark.parametrize("kind", ["vllm", "gyre", "sglang", "llamacpp"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_engine_with_ids_is_captured_exactly(tmp_path: Path, kind: Kind, stream: bool) -> None:
    answer = Answer(text="hello there")
    with FakeEngine(kind=kind, script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        assert proxy.chat(stream=stream).status_code == 200
        (row,) = proxy.rows()
    assert (row.outcome, row.capture_quality, row.capture_flags) == ("ok", "exact", [])
    assert ids_of(row.prompt_suffix) == tokenize(render(HI))
    assert ids_of(row.output) == answer.output_ids
    assert logprobs_of(row) == logprobs_for(answer.output_ids)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("stream", [False, True])
def test_completions_are_captured_exactly(tmp_path: Path, kind: Kind, stream: bool) -> None:
    answer = Answer(text="and so on")
    with FakeEngine(kind=kind, script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        asked = {"prompt": "once", "stream": stream}
        shown = httpx.post(proxy.base() + "/completions", json=asked)
        (row,) = proxy.rows()
    assert "token_ids" not in shown.text and '"token_logprobs"' not in shown.text
    assert (row.wire, row.capture_quality) == ("completions", "exact")
    assert ids_of(row.prompt_suffix) == tokenize("once")
    assert ids_of(row.output) == answer.output_ids
    assert response_of(row) == {"text": "and so on"}


def test_ids_suppressed_by_a_tool_parser_are_flagged_and_not_padded(tmp_path: Path) -> None:
    answer = Answer(text="x" * 19, drop_ids=range(4, 16))
    with FakeEngine(script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=True)
        proxy.chat(stream=False)
        rows = proxy.rows(2)
    kept = [token for at, token in enumerate(answer.output_ids) if at not in range(4, 16)]
    for row in rows:
        assert (row.outcome, row.capture_quality) == ("ok", "incomplete")
        assert "tokens_incomplete" in row.capture_flags
        assert ids_of(row.output) == kept
        assert len(logprobs_of(row)) == 20


@pytest.mark.parametrize("stream", [False, True])
def test_ids_that_one_of_several_choices_lost_flag_all_of_them(tmp_path: Path, stream: bool) -> None:
    answers = Answer(text="one", others=(Answer(text="second", drop_ids=[2, 3]),))
    with FakeEngine(script=answers) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(n=2, stream=stream)
        rows = proxy.rows(2)
    assert [row.capture_flags for row in rows] == [["tokens_incomplete"]] * 2
    assert [row.capture_quality for row in rows] == ["incomplete"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_missing_logprob_is_flagged_and_nothing_is_shifted(tmp_path: Path, stream: bool) -> None:
    answer = Answer(text="x" * 19, drop_logprobs=[7])
    with FakeEngine(script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream)
        (row,) = proxy.rows()
    assert (row.capture_quality, row.capture_flags) == ("ids_only", ["logprobs_incomplete"])
    assert ids_of(row.output) == answer.output_ids
    expected = logprobs_for(answer.output_ids)
    assert logprobs_of(row) == expected[:7] + expected[8:]


def test_parallel_tool_calls_streamed_in_pieces_equal_the_plain_form(tmp_path: Path) -> None:
    with FakeEngine(script=RICH) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat()
        proxy.chat(stream=True)
        plain, streamed = proxy.rows(2)
    assert response_of(streamed) == response_of(plain)
    assert [call["function"]["arguments"] for call in response_of(plain)["tool_calls"]] == [
        call.arguments for call in TOOLS
    ]
    assert ids_of(streamed.output) == ids_of(plain.output) == RICH.output_ids


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_that_the_client_turned_off_are_captured_and_not_shown(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(script=Answer(text="abc")) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=stream, logprobs=False)
        (row,) = proxy.rows()
        assert engine.calls[0].json["logprobs"] is True
    shown = events_of(answer) if stream else [answer.json()]
    assert [choice["logprobs"] for event in shown for choice in event["choices"]] == [None] * (
        sum(len(event["choices"]) for event in shown)
    )
    assert row.capture_quality == "exact"


@pytest.mark.parametrize("kind", ["vllm", "gyre", "sglang", "llamacpp", "text"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_sees_what_it_would_see_without_the_proxy(tmp_path: Path, kind: Kind, stream: bool) -> None:
    asked = {"model": "m", "messages": HI, "stream": stream}
    with FakeEngine(kind=kind, script=RICH) as engine, RunningProxy(tmp_path, engine) as proxy:
        direct = httpx.post(engine.url + "/v1/chat/completions", json=asked)
        proxied = httpx.post(proxy.base() + "/chat/completions", json=asked)
    numbered = direct.content.replace(b"chatcmpl-1", b"chatcmpl-2")
    assert proxied.content == numbered
    assert proxied.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_asks_for_ids_gets_them(tmp_path: Path, stream: bool) -> None:
    asked: dict[str, Any] = {"return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    with FakeEngine(script=Answer(text="abc")) as engine, RunningProxy(tmp_path, engine) as proxy:
        answer = proxy.chat(stream=stream, **asked)
        (row,) = proxy.rows()
        assert engine.calls[0].json["top_logprobs"] == 2
    first = events_of(answer)[0] if stream else answer.json()
    assert first["prompt_token_ids"] == ids_of(row.prompt_suffix)
    assert not stream or events_of(answer)[-1]["usage"]["completion_tokens"] == 4
    assert row.capture_quality == "exact"


def test_a_tool_call_of_200_kb_is_streamed_and_recorded_whole(tmp_path: Path) -> None:
    arguments = json.dumps({"text": "é line\n" * 20_000})
    events = [
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "write", "arguments": ""}}]})
    ]
    for at in range(0, len(arguments), 100):
        events.append(
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments[at : at + 100]}}]})
        )
    script = streamed(*events, chunk({}, finish_reason="tool_calls"))
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        shown = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert len(arguments) > 200_000
    calls = [
        part for e in events_of(shown) for c in e["choices"] for part in c["delta"].get("tool_calls", ())
    ]
    assert "".join(part["function"]["arguments"] for part in calls) == arguments
    assert response_of(row)["tool_calls"][0]["function"]["arguments"] == arguments


def test_several_choices_have_a_row_each_and_one_usage(tmp_path: Path) -> None:
    answers = Answer(text="one", others=(Answer(text="second"),))
    for stream in (False, True):
        logs = tmp_path / str(stream)
        with FakeEngine(script=answers) as engine, RunningProxy(logs, engine) as proxy:
            proxy.chat(n=2, stream=stream)
            rows = proxy.rows(2)
        assert [row.choice for row in rows] == [0, 1]
        assert [response_of(row)["content"] for row in rows] == ["one", "second"]
        assert [ids_of(row.output) for row in rows] == [answers.output_ids, answers.others[0].output_ids]
        assert [row.usage is not None for row in rows] == [True, False]
        assert len({row.call_id for row in rows}) == 1 and len({row.order for row in rows}) == 2
        assert rows[1].capture_quality == "exact"


def test_a_prompt_that_grows_is_stored_as_what_is_new(tmp_path: Path) -> None:
    def reply(request: Any) -> Answer:
        return Answer(text=f"turn {len(request.json['messages'])}")

    with FakeEngine(script=reply) as engine, RunningProxy(tmp_path, engine) as proxy:
        messages = list(HI)
        for turn in range(4):
            answer = proxy.chat(messages=messages, stream=turn % 2 == 0)
            said = content_of(answer) if turn % 2 == 0 else answer.json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"go {turn}"}]
        rows = proxy.rows(4)
        prompts = [call.prompt_ids for call in engine.calls]
    assert [prompt_of(rows, row) for row in rows] == prompts
    assert [row.parent_call_id for row in rows] == [None, *(row.call_id for row in rows[:3])]
    assert all(row.prompt_shared > 20 and len(ids_of(row.prompt_suffix)) < 40 for row in rows[1:])


def test_a_first_event_of_2_mb_of_prompt_ids_is_captured_and_stripped(tmp_path: Path) -> None:
    ids = [at * 7919 % 150_000 for at in range(300_000)]
    first = chunk({"role": "assistant"}, top={"prompt_token_ids": ids})
    script = streamed(first, chunk({"content": "hi"}, finish_reason="stop"), split=1 << 14)
    with FakeEngine(script=script) as engine, RunningProxy(tmp_path, engine) as proxy:
        shown = proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert len(first) > 1_800_000
    assert len(shown.content) < 500 and content_of(shown) == "hi"
    assert row.prompt_tokens == 300_000 and ids_of(row.prompt_suffix) == ids


@pytest.mark.parametrize("profile", ["auto", "vllm"])
def test_sglangs_refusal_to_stream_ids_never_reaches_the_user(tmp_path: Path, profile: str) -> None:
    with FakeEngine(kind="sglang", script=Answer(text="abc")) as engine:
        backends = [{"url": engine.url, "profile": profile}]
        with RunningProxy(tmp_path, backends=backends) as proxy:
            shown = proxy.chat(stream=True)
            rows = proxy.rows(1 if profile == "auto" else 2)
    assert shown.status_code == 200 and content_of(shown) == "abc"
    assert rows[-1].outcome == "ok"
    if profile == "auto":
        assert (len(rows), rows[0].capture_quality) == (1, "exact")
    else:
        assert [row.http_status for row in rows] == [400, 200]
        assert "fields_refused" in rows[1].capture_flags and rows[1].capture_quality == "none"


def test_version_spans_come_from_the_engine(tmp_path: Path) -> None:
    answer = Answer(text="abcdef", versions=[("7", 0, 4), ("8", 4, 7)])
    with FakeEngine(kind="sglang", script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat()
        (row,) = proxy.rows()
    assert row.version_spans == [VersionSpan("7", 0, 4), VersionSpan("8", 4, 7)]
    assert row.capture_quality == "exact"


def test_a_version_from_the_control_api_covers_all_tokens(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(text="abc")) as engine:
        backends = [{"url": engine.url, "version": "3"}]
        with RunningProxy(tmp_path, backends=backends) as proxy:
            proxy.chat()
            (row,) = proxy.rows()
    assert row.version_spans == [VersionSpan("3", 0, 4)]


def test_a_version_that_changes_in_mid_call_is_unsure_and_aborts_nothing(tmp_path: Path) -> None:
    with (
        FakeEngine(script=Answer(text="x" * 40, gap=0.02)) as engine,
        RunningProxy(tmp_path, engine) as proxy,
    ):
        body = {"model": "m", "messages": HI, "stream": True}
        with httpx.stream("POST", proxy.base() + "/chat/completions", json=body) as answer:
            parts = answer.iter_raw()
            got = next(parts)
            proxy.run(applied(proxy, SetVersion(None, "4")))
            got += b"".join(parts)
        (row,) = proxy.rows()
    assert content_of(got) == "x" * 40
    assert (row.outcome, row.capture_quality, row.version_spans) == ("ok", "incomplete", [])
    assert "version_unsure" in row.capture_flags


async def applied(proxy: RunningProxy, command: SetVersion) -> None:
    proxy.worker.apply(command)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(text="", reasoning="I think that", finish_reason="length"),
        Answer(text="", tool_calls=(ToolCall("run", '{"cmd": "l'),), finish_reason="length"),
    ],
)
def test_an_answer_cut_by_max_tokens_is_not_closed_artificially(
    tmp_path: Path, stream: bool, answer: Answer
) -> None:
    with FakeEngine(script=answer) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream)
        (row,) = proxy.rows()
    message = response_of(row)
    assert (row.outcome, row.finish_reason) == ("ok", "length")
    assert ids_of(row.output) == answer.output_ids
    assert message.get("reasoning", "") == answer.reasoning
    if answer.tool_calls:
        assert message["tool_calls"][0]["function"]["arguments"] == '{"cmd": "l'
