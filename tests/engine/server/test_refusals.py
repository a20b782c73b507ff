"""Whatever cannot be served is refused in OpenAI's form, and the engine goes on."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.server import reading
from tests.engine.server.rig import USER, Running, run_engine, tiny

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

BOTH: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", "many"),
    ("max_tokens", 1.5),
    ("n", 0),
    ("n", 1000),
    ("temperature", -0.1),
    ("temperature", 1e-300),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("min_p", 2),
    ("seed", 1 << 64),
    ("seed", "lucky"),
    ("stop", ""),
    ("stop", [1]),
    ("stop", ["x"] * 100),
    ("stop", ["x" * 5000]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [99_999]),
    ("stream", "yes"),
    ("stream_options", {"include_usage": "yes"}),
    ("request_id", ""),
    ("request_id", 7),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 99),
    ("return_token_ids", 1),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -0.5),
    ("repetition_penalty", 1.1),
    ("logit_bias", {"50": 1}),
    ("response_format", {"type": "json_object"}),
    ("min_tokens", 3),
    ("output_token_ids", [99_999]),
    ("output_token_ids", "none"),
]
OF_CHAT: list[tuple[str, Any]] = [
    ("messages", "hello"),
    ("messages", None),
    ("messages", ["hello"]),
    ("max_completion_tokens", 0),
    ("logprobs", 3),
    ("top_logprobs", 3),
    ("prompt_token_ids", [99_999]),
    ("prompt_token_ids", ["a"]),
    ("prompt_token_ids", []),
    ("tools", "look"),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "look"}}),
    ("functions", [{"name": "look"}]),
    ("chat_template", "{{ messages }}"),
    ("chat_template_kwargs", 1),
]
OF_COMPLETIONS: list[tuple[str, Any]] = [
    ("prompt", 7),
    ("prompt", None),
    ("prompt", ["a", 1]),
    ("prompt", []),
    ("prompt", ""),
    ("prompt", [[]]),
    ("prompt", ["x", ""]),
    ("prompt", ["a"] * 100),
    ("prompt", [99_999]),
    ("prompt", [[1], [99_999]]),
    ("logprobs", True),
    ("logprobs", 99),
    ("echo", True),
    ("suffix", "end"),
    ("best_of", 2),
]


@pytest.mark.parametrize(("field", "value"), [*BOTH, *OF_CHAT])
def test_a_field_of_chat_that_cannot_be_served_is_named(engine: Running, field: str, value: Any) -> None:
    status, error = engine.error(CHAT, {"messages": USER, "max_tokens": 4, field: value})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", field), error
    assert field in error["message"]


@pytest.mark.parametrize(("field", "value"), [*BOTH, *OF_COMPLETIONS])
def test_a_field_of_completions_that_cannot_be_served_is_named(
    engine: Running, field: str, value: Any
) -> None:
    status, error = engine.error(COMPLETIONS, {"prompt": "x", "max_tokens": 4, field: value})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", field), error
    assert field in error["message"]


def test_values_that_change_nothing_and_fields_nobody_knows_are_taken(engine: Running) -> None:
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}}
    neutral |= {
        "response_format": {"type": "text"},
        "min_tokens": 0,
        "top_k": -1,
        "user": "me",
        "store": True,
    }
    nulls = dict.fromkeys(("n", "stop", "seed", "temperature", "tools", "tool_choice", "logprobs"))
    assert engine.chat(**neutral, **nulls, service_tier="auto")["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"messages": [NaN]}', b'{"prompt": "\xff"}', b"[" * 100_000]
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_request_is_refused(engine: Running, path: str, body: bytes) -> None:
    answer = engine.client.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_parts_that_the_model_cannot_read_are_named(engine: Running) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Look:"}, image]}]
    status, error = engine.error(CHAT, messages=messages)
    assert status == 400 and "messages[0].content[1]" in error["message"] and "image" in error["message"]


def test_an_unknown_model_is_not_found(engine: Running) -> None:
    for path, body in (
        (CHAT, {"messages": USER}),
        (COMPLETIONS, {"prompt": "x"}),
        ("/tokenize", {"prompt": "x"}),
    ):
        status, error = engine.error(path, {**body, "model": "gpt-17"})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "`gpt-17`" in error["message"] and "`tiny`" in error["message"]


def test_unknown_paths_and_methods_are_told_in_the_same_form(engine: Running) -> None:
    status, error = engine.error("/v1/nothing", {})
    assert (status, error["code"]) == (404, "not_found")
    answer = engine.client.get(CHAT)
    assert answer.status_code == 405 and answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_not_read(engine: Running, declared: bool) -> None:
    parts = (b" " * (1 << 20) for _ in range((reading.MOST_BYTES >> 20) + 1))
    try:
        answer = engine.client.post(CHAT, content=b"".join(parts) if declared else parts)
    except httpx.WriteError:  # it closed before we had sent it all
        return
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_more_than_the_context_is_an_overflow_that_agents_know(
    engine: Running, path: str, stream: bool
) -> None:
    long = "word " * 5000
    for text, limit in ((long, 5), (long, None), ("short", 5000)):
        body = {"messages": [{"role": "user", "content": text}], "prompt": text, "max_tokens": limit}
        status, error = engine.error(path, {**body, "stream": stream})
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in error["message"] and "4096" in error["message"]


def test_a_text_that_cannot_fit_is_refused_without_reading_it(engine: Running) -> None:
    began = time.process_time()
    status, error = engine.error(COMPLETIONS, prompt="word " * 2_000_000, max_tokens=1)
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert time.process_time() - began < 2, "it was encoded all the same"


def test_a_name_in_use_is_refused_and_its_owner_goes_on() -> None:
    with run_engine() as engine:
        ask = {"messages": USER, "max_tokens": 300, "ignore_eos": True, "request_id": "a", "stream": True}
        with engine.client.stream("POST", CHAT, json=ask) as first:
            lines = first.iter_lines()
            next(lines)
            status, error = engine.error(CHAT, ask)
            assert (status, error["code"]) == (400, "duplicate_request_id")
            assert list(lines)[-2] == "data: [DONE]"


def test_a_full_queue_is_an_overload_that_passes() -> None:
    with run_engine(slots=1, queue=1) as engine:
        long = {"messages": USER, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with (
            engine.client.stream("POST", CHAT, json=long) as first,
            httpx.Client(base_url=engine.url) as other,
        ):
            lines = first.iter_lines()  # kept: its end would be the connection's
            next(lines)
            with other.stream("POST", CHAT, json=long) as second:
                assert second.status_code == 200
                answer = engine.post(CHAT, long)
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1"), answer.text
                assert answer.json()["error"]["code"] == "overloaded"
        engine.wait_until_idle()
        assert engine.chat()["usage"]["completion_tokens"] == 8


def test_of_several_prompts_all_are_refused_with_the_one() -> None:
    with run_engine(slots=1, queue=2) as engine:
        status, error = engine.error(
            COMPLETIONS, prompt=["a", "b", "c", "d", "e"], max_tokens=500, ignore_eos=True
        )
        assert (status, error["code"]) == (503, "overloaded")
        engine.wait_until_idle()
        assert engine.complete()["usage"]["completion_tokens"] == 8


def test_a_model_without_a_template_completes_and_cannot_chat() -> None:
    with run_engine(model=replace(tiny(), chat_template=None)) as engine:
        for path in (CHAT, "/tokenize", "/apply-template"):
            status, error = engine.error(path, messages=USER)
            assert (status, error["code"]) == (400, "no_chat_template")
            assert "--chat-template" in error["message"]
        assert engine.complete()["usage"]["completion_tokens"] == 8


def test_an_answer_that_the_memory_cannot_hold_is_refused() -> None:
    with run_engine(kv_bytes=128 << 10) as engine:  # 1 KiB a token
        status, error = engine.error(CHAT, {"messages": USER, "max_tokens": 3000})
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "MiB" in error["message"]
        assert engine.chat()["usage"]["completion_tokens"] == 8


def test_a_machine_without_memory_fails_the_request_and_not_the_engine() -> None:
    model = load_model("tiny")
    calls = itertools.count()

    def short_of_memory(*_: object) -> None:
        if next(calls) == 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    model.model.get_input_embeddings().register_forward_pre_hook(short_of_memory)
    for stream in (False, True):
        with run_engine(model=model) as engine:
            calls = itertools.count()
            answer = engine.post(CHAT, {"messages": USER, "max_tokens": 20, "stream": stream})
            last = answer.text.removesuffix("\n\n").split("\n\n")[-1].removeprefix("data: ")
            error = json.loads(last)["error"]
            assert answer.status_code == (200 if stream else 500)
            assert (error["type"], error["code"]) == ("server_error", "engine_error")
            assert "can't allocate memory" in error["message"]
            assert engine.chat()["usage"]["completion_tokens"] == 8
