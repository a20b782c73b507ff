"""`check --engine`: ids and texts of a recorded run against the engine it ran on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.errors import UpstreamError
from gyre.proxy.log.check import check
from gyre.proxy.log.sealing.seal import seal
from tests.engines.fake import FakeEngine, refused_url
from tests.engines.routes import Kind
from tests.engines.script import Answer, ToolCall
from tests.engines.tokens import render, tokenize
from tests.log.builders import LogBuilder
from tests.proxy.running import RunningProxy

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


def record_run(root: Path, engine: FakeEngine) -> None:
    """Through the real proxy: plain, streamed, with tools, cut by length, and a completion."""
    with RunningProxy(root, engine) as proxy:
        history: list[dict[str, Any]] = [{"role": "user", "content": "hello there"}]
        for stream in (False, True):
            proxy.chat(messages=history, stream=stream).raise_for_status()
            history += [{"role": "assistant", "content": "good day"}, {"role": "user", "content": "more"}]
        proxy.chat(messages=history, tools=TOOLS, tool_choice="auto").raise_for_status()
        proxy.rows(3)


@pytest.mark.parametrize("kind", ["vllm", "gyre", "llamacpp"])
def test_a_recorded_run_says_what_the_engine_says(tmp_path: Path, kind: Kind) -> None:
    script = [
        Answer(text="good day"),
        Answer(text="good day"),
        Answer(text="I look", tool_calls=[ToolCall("look", "{}")]),
    ]
    with FakeEngine(kind=kind, script=script) as engine:
        record_run(tmp_path, engine)
        seal(tmp_path)
        report = check(tmp_path, engine=engine.url + "/v1")
    assert report.findings == []
    assert (report.counts["engine_prompts"], report.counts["engine_outputs"]) == (3, 3)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_went_on_and_prompts_of_ids_are_compared_too(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(kind="gyre", script=Answer(text="good day")) as engine:
        with RunningProxy(tmp_path, engine) as proxy:
            proxy.chat(stream=stream, output_token_ids=tokenize("good"))
            proxy.chat(stream=stream, prompt_token_ids=[101, 102], output_token_ids=tokenize("go"))
            asked = {"prompt": "once", "stream": stream, "output_token_ids": tokenize("go")}
            proxy.post(proxy.base() + "/completions", json=asked)
        report = check(tmp_path, engine=engine.url)
    assert report.findings == []
    assert (report.counts["engine_prompts"], report.counts["engine_outputs"]) == (3, 3)


def one_row(root: Path, engine: str, prompt: list[int], output: list[int], **columns: Any) -> None:
    worker = LogBuilder(root).worker()
    messages = [b'{"role":"user","content":"hi"}']
    columns = {"response": b'{"role":"assistant","content":"good"}', **columns}
    worker.call("c1", prompt, output, messages, engine=engine, **columns)
    worker.die()


GOOD = tokenize(render([{"role": "user", "content": "hi"}]))


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
@pytest.mark.parametrize(
    ("prompt", "output", "columns", "codes"),
    [
        (GOOD, tokenize("good<|im_end|>"), {}, []),
        (GOOD, tokenize("good"), {}, []),
        (GOOD, tokenize("goo"), {}, ["engine_output"]),
        (GOOD, tokenize("good luck"), {}, ["engine_output"]),
        (GOOD, tokenize("good luck<|im_end|>"), {}, ["engine_output"]),
        (GOOD, tokenize("bad<|im_end|>"), {}, ["engine_output"]),
        (GOOD[:-1], tokenize("good"), {}, ["engine_prompt"]),
        (GOOD[:-1], tokenize("goo"), {}, ["engine_prompt", "engine_output"]),
        (GOOD[:-1], tokenize("goo"), {"outcome": "client_gone"}, []),
        (GOOD, tokenize("gooé")[:-1], {"response": b'{"content":"goo"}', "finish_reason": "length"}, []),
        (GOOD, tokenize("<think>x</think>good"), {"response": b'{"content":"good","reasoning":"x"}'}, []),
    ],
)
def test_differences_are_errors_that_name_the_call(
    tmp_path: Path,
    kind: Kind,
    prompt: list[int],
    output: list[int],
    columns: dict[str, Any],
    codes: list[str],
) -> None:
    one_row(tmp_path, kind, prompt, output, **columns)
    with FakeEngine(kind=kind) as engine:
        report = check(tmp_path, engine=engine.url)
    assert [finding.code for finding in report.findings] == codes
    assert {finding.where for finding in report.findings} <= {"c1"}


def test_an_engine_that_does_not_answer_is_an_error_that_names_it(tmp_path: Path) -> None:
    one_row(tmp_path, "vllm", GOOD, [])
    url = refused_url()
    with pytest.raises(UpstreamError, match=url):
        check(tmp_path, engine=url)


def test_a_proxy_given_in_place_of_the_engine_is_an_error_with_a_hint(tmp_path: Path) -> None:
    one_row(tmp_path, "vllm", GOOD, [])
    with FakeEngine(kind="text") as engine, pytest.raises(UpstreamError) as caught:
        check(tmp_path, engine=engine.url)
    assert "not of the proxy" in caught.value.hint and "log's model, `" in caught.value.hint
    assert "404" in caught.value.message and "developer.mozilla" not in caught.value.message
