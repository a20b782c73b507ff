"""Answers of chat/completions as events that the official SDK takes, at any cut the same answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gyre.proxy.wires.responses.errors import error_body
from gyre.proxy.wires.translation import Ending
from tests.proxy.json_text import TEXT
from tests.wires.responses_builders import (
    AGENTS,
    CALL_ID,
    EXEC,
    FIND,
    PATCH,
    WEB,
    Json,
    chat_call,
    events,
    kinds,
    run,
    writer,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATIENT, FEWER = settings(deadline=None), settings(max_examples=30, deadline=None)
TOOLS = (EXEC, AGENTS, PATCH, FIND, WEB)
USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 9,
    "total_tokens": 49,
    "prompt_tokens_details": {"cached_tokens": 32},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
NAMES = ["exec_command", "agents__spawn_agent", "apply_patch", "tool_search", "made_up"]
ARGUMENTS = TEXT.map(lambda text: json.dumps({"input": text})) | st.just('{"input": "cut o')
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), max_size=3)


def deltas_of(message: Json, size: int) -> Iterator[Json]:
    """A message as an engine streams it: one field after the other, in pieces."""
    for field in ("reasoning_content", "content", "refusal"):
        text = message.get(field) or ""
        yield from ({field: text[at : at + size]} for at in range(0, len(text), size))
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {"name": name, "arguments": ""}}]}
        for at in range(0, len(arguments), size):
            piece = {"arguments": arguments[at : at + size]}
            yield {"tool_calls": [{"index": index, "function": piece}]}


@st.composite
def messages(draw: st.DrawFn) -> Json:
    calls = draw(CALLS)
    return {
        "role": "assistant",
        "reasoning_content": draw(TEXT),
        "content": draw(TEXT),
        "refusal": draw(st.none() | TEXT),
        "tool_calls": [chat_call(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(calls)],
    }


@PATIENT
@given(messages(), st.integers(1, 5), st.booleans(), st.sampled_from(["stop", "tool_calls", "length", None]))
def test_every_event_is_one_that_the_sdk_knows_and_the_last_has_the_whole_answer(
    message: Json, size: int, sealed: bool, reason: str | None
) -> None:
    include = ["reasoning.encrypted_content"] if sealed else None
    out = writer(*TOOLS, include=include)
    found = events(run(out, deltas_of(message, size), Ending(reason, None, USAGE)))
    for event in found:
        EVENT.validate_python(event)
    Response.model_validate(out.answer())
    assert found[-1]["response"] == out.answer()
    assert kinds(found)[:2] == ["created", "in_progress"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: _index(item["id"])) == out.answer()["output"]


def _index(ident: str) -> int:
    return int(ident.rpartition("_")[2])


@PATIENT
@given(messages(), st.integers(1, 5))
def test_pieces_are_the_whole(message: Json, size: int) -> None:
    """A plain answer goes the same way, as one delta."""
    pieces, whole = writer(*TOOLS), writer(*TOOLS)
    run(pieces, deltas_of(message, size))
    run(whole, [message])
    assert pieces.answer()["output"] == whole.answer()["output"]


@PATIENT
@given(messages(), st.integers(1, 5))
def test_deltas_add_up_to_their_items(message: Json, size: int) -> None:
    out = writer(*TOOLS)
    told: dict[str, str] = {}
    for event in events(run(out, deltas_of(message, size))):
        if event["type"].endswith(".delta"):
            told[event["item_id"]] = told.get(event["item_id"], "") + event["delta"]
    for item in out.answer()["output"]:
        parts = [part.get("text", part.get("refusal")) for part in item.get("content", ())]
        text = item.get("arguments", item.get("input", "".join(parts)))
        assert item["type"] == "tool_search_call" or told.get(item["id"], "") == text


@FEWER
@given(messages(), st.integers(1, 5))
def test_the_official_client_reads_the_same_response(message: Json, size: int) -> None:
    out = writer(*TOOLS)
    stream = run(out, deltas_of(message, size), Ending("stop", None, USAGE))
    with client(stream) as openai_client, openai_client.responses.stream(model="m", input="hi") as read:
        final = read.get_final_response()
    expected = Response.model_validate(out.answer())
    assert _without_parsed(final.to_dict()) == expected.to_dict()


def _without_parsed(value: Any) -> Any:
    """The client adds what it parsed of a text."""
    if isinstance(value, dict):
        return {key: _without_parsed(item) for key, item in value.items() if not key.startswith("parsed")}
    return [_without_parsed(item) for item in value] if isinstance(value, list) else value


def client(body: bytes, status: int = 200) -> openai.OpenAI:
    def answer(request: httpx2.Request) -> httpx2.Response:
        kind = "application/json" if body.startswith(b"{") else "text/event-stream"
        return httpx2.Response(status, content=body, headers={"content-type": kind})

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="x", base_url="http://engine/v1", http_client=transport, max_retries=0)


def test_the_official_client_reads_a_plain_answer() -> None:
    out = writer(*TOOLS)
    run(
        out,
        [{"role": "assistant", "content": "hello", "tool_calls": [chat_call("c1", "exec_command", "{}")]}],
    )
    with client(json.dumps(out.answer()).encode()) as openai_client:
        read = openai_client.responses.create(model="m", input="hi")
    assert (read.output_text, read.output[1].type) == ("hello", "function_call")


def test_a_whole_stream_in_its_order() -> None:
    deltas: list[Json] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "I "},
        {"content": "look."},
        {"tool_calls": [{"index": 0, **chat_call("c1", "exec_command", "")}]},
        {"tool_calls": [{"index": 1, **chat_call("c2", "apply_patch", '{"input": "a')}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"cmd":"ls"}'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '\\nb"}'}}]},
    ]
    found = events(run(writer(EXEC, PATCH), deltas))
    assert kinds(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "output_item.added",
        "custom_tool_call_input.delta",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
        "function_call_arguments.done",
        "output_item.done",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert [event.get("output_index", "-") for event in found[15:24]] == [2, 3, 3, 2, 3, 2, 2, 3, 3]
    thought, spoken, call, patch = found[-1]["response"]["output"]
    assert thought["id"] == f"rs_{CALL_ID}_0"
    assert spoken["content"] == [
        {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
    ]
    assert (call["id"], call["call_id"], call["arguments"]) == (f"fc_{CALL_ID}_2", "c1", '{"cmd":"ls"}')
    assert (patch["id"], patch["call_id"], patch["input"]) == (f"ctc_{CALL_ID}_3", "c2", "a\nb")
    assert {item["status"] for item in found[-1]["response"]["output"]} == {"completed"}


def output_of(*deltas: Json, tools: tuple[Json, ...] = TOOLS, **fields: Any) -> list[Json]:
    out = writer(*tools, **fields)
    run(out, deltas)
    found = out.answer()["output"]
    assert isinstance(found, list)
    return found


def test_a_call_has_the_clients_name_and_namespace() -> None:
    spawn, made_up = output_of(
        {"tool_calls": [chat_call("c1", "agents__spawn_agent", "{}"), chat_call("c2", "made_up", "{}")]}
    )
    assert (spawn["name"], spawn["namespace"]) == ("spawn_agent", "agents")
    assert (made_up["name"], "namespace" in made_up) == ("made_up", False)


def test_a_search_is_an_item_with_its_arguments_as_a_value() -> None:
    good, bad = output_of(
        {
            "tool_calls": [
                chat_call("c1", "tool_search", '{"query": "x"}'),
                chat_call("c2", "tool_search", '{"q'),
            ]
        }
    )
    assert (good["type"], good["execution"], good["arguments"]) == (
        "tool_search_call",
        "client",
        {"query": "x"},
    )
    assert bad["arguments"] == '{"q'


def test_a_call_without_an_id_gets_one() -> None:
    (call,) = output_of(
        {"tool_calls": [{"index": 0, "function": {"name": "exec_command", "arguments": "{}"}}]}
    )
    assert call["call_id"] == f"call_{CALL_ID}_0"


def test_arguments_wait_for_their_name() -> None:
    first = {"tool_calls": [{"index": 0, "id": "c1", "function": {"arguments": '{"input": "a'}}]}
    second = {"tool_calls": [{"index": 0, "function": {"name": "apply_patch", "arguments": 'b"}'}}]}
    (call,) = output_of(first, second)
    assert (call["type"], call["input"]) == ("custom_tool_call", "ab")
    (nameless,) = output_of(first)
    assert (nameless["name"], nameless["arguments"]) == ("", '{"input": "a')


def test_what_is_said_after_a_call_is_an_item_of_its_own() -> None:
    found = output_of({"content": "a"}, {"tool_calls": [chat_call("c1", "x", "{}")]}, {"content": "b"})
    assert [item["type"] for item in found] == ["message", "function_call", "message"]


def test_a_refusal_is_a_part_of_its_own() -> None:
    out = writer()
    found = events(run(out, [{"content": "Well."}, {"refusal": "No"}, {"refusal": "."}]))
    (item,) = out.answer()["output"]
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]
    assert item["content"][1] == {"type": "refusal", "refusal": "No."}
    told = [(event["content_index"], *kinds([event])) for event in found if "content_index" in event]
    assert told == [
        (0, "content_part.added"),
        (0, "output_text.delta"),
        (0, "output_text.done"),
        (0, "content_part.done"),
        (1, "content_part.added"),
        (1, "refusal.delta"),
        (1, "refusal.delta"),
        (1, "refusal.done"),
        (1, "content_part.done"),
    ]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_either_name_and_once(field: str) -> None:
    (found,) = output_of({field: "hm"})
    assert found["content"] == [{"type": "reasoning_text", "text": "hm"}]
    (both,) = output_of({"reasoning": "hm", "reasoning_content": "hm"})
    assert both["content"] == found["content"]


def test_reasoning_is_sealed_only_for_those_who_ask() -> None:
    (plain,) = output_of({"reasoning": "hm"})
    (kept,) = output_of({"reasoning": "hm"}, include=["reasoning.encrypted_content"])
    assert ("encrypted_content" in plain, kept["encrypted_content"]) == (False, "gyre1.aG0=")
    begun = events(run(writer(include=["reasoning.encrypted_content"]), [{"reasoning": "hm"}]))[2]
    assert "encrypted_content" not in begun["item"], "there is nothing to seal yet"


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        (None, "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_how_it_ends(reason: str | None, status: str, details: Json | None) -> None:
    out = writer(*TOOLS)
    deltas: list[Json] = [
        {"content": "a"},
        {"tool_calls": [chat_call("c1", "x", "{}"), chat_call("c2", "x", '{"a')]},
    ]
    found = events(run(out, deltas, Ending(reason)))[-1]
    assert (found["type"], out.answer()["status"]) == (f"response.{status}", status)
    assert out.answer()["incomplete_details"] == details
    assert [item["status"] for item in out.answer()["output"]] == ["completed", "completed", status]


def test_usage_has_its_details() -> None:
    out = writer()
    run(out, [], Ending("stop", None, USAGE))
    assert out.answer()["usage"] == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 49,
    }


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 40, "completion_tokens": 9}, {**USAGE, "total_tokens": None}]
)
def test_usage_without_a_sum_is_summed(usage: Json) -> None:
    out = writer()
    run(out, [], Ending("stop", None, usage))
    assert out.answer()["usage"]["total_tokens"] == 49


def test_no_usage_is_none() -> None:
    out = writer()
    run(out, [])
    assert out.answer()["usage"] is None


def test_the_response_repeats_its_request() -> None:
    asked: Json = {
        "temperature": 0.5,
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "instructions": "Be short.",
    }
    out = writer(EXEC, WEB, tool_choice="required", parallel_tool_calls=False, store=True, **asked)
    run(out, [])
    answer = out.answer()
    assert {key: answer[key] for key in asked} == asked
    assert (answer["id"], answer["model"], answer["tools"]) == (f"resp_{CALL_ID}", "m", [EXEC, WEB])
    assert (answer["tool_choice"], answer["parallel_tool_calls"]) == ("required", False)
    assert answer["store"] is False, "the proxy keeps nothing, whatever was asked"


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (400, "context_length_exceeded", "context_length_exceeded"),
        (400, "whatever", "invalid_prompt"),
        (429, "whatever", "rate_limit_exceeded"),
        (429, "insufficient_quota", "insufficient_quota"),
        (500, "whatever", "server_error"),
        (502, "upstream_cut", "server_error"),
        (503, "server_is_overloaded", "server_error"),
    ],
)
def test_a_failure_in_mid_stream_has_a_code_that_codex_acts_on(status: int, code: str, told: str) -> None:
    out = writer(EXEC)
    begun = out.start(None) + out.delta({"reasoning": "hm"}) + out.delta({"content": "partial"})
    found = events(begun + out.failed(status, "broke off", code))
    assert found[-1]["type"] == "response.failed"
    response = found[-1]["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": told, "message": "broke off"})
    assert [item["type"] for item in response["output"]] == ["reasoning"], "only what was said to its end"
    assert response == out.answer()


def test_a_failure_before_the_start_starts() -> None:
    found = events(writer().failed(502, "broke off", "x"))
    assert kinds(found) == ["created", "in_progress", "failed"]
    for event in found:
        EVENT.validate_python(event)


def test_an_answer_that_the_engine_gave_up_failed() -> None:
    found = events(run(writer(), [{"content": "a"}], Ending("abort")))
    assert found[-1]["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"content": None, "reasoning": None, "tool_calls": None, "refusal": None},
        {"content": ["x"], "reasoning": 3, "tool_calls": "x"},
        {"tool_calls": [None, "x", 3, {}, {"index": 0}, {"function": None}, {"index": "x", "function": 3}]},
        {"tool_calls": [{"index": 0, "function": {"name": None, "arguments": None}}]},
    ],
)
def test_odd_deltas_say_nothing(delta: Json) -> None:
    assert writer().delta(delta) == b""


@pytest.mark.parametrize(
    ("status", "code", "error", "told", "kind"),
    [
        (
            400,
            "context_length_exceeded",
            openai.BadRequestError,
            "context_length_exceeded",
            "invalid_request_error",
        ),
        (400, "invalid_request", openai.BadRequestError, "invalid_request", "invalid_request_error"),
        (429, "whatever", openai.RateLimitError, "rate_limit_exceeded", "rate_limit_error"),
        (503, "no_backend", openai.InternalServerError, "server_is_overloaded", "server_error"),
        (500, "whatever", openai.InternalServerError, "whatever", "server_error"),
    ],
)
def test_plain_errors_are_the_sdks_exceptions(
    status: int, code: str, error: type[openai.APIStatusError], told: str, kind: str
) -> None:
    body = error_body(status, "too long", code)
    with client(body, status) as openai_client, pytest.raises(error) as problem:
        openai_client.responses.create(model="m", input="hi")
    assert (problem.value.code, problem.value.type) == (told, kind)
    assert "too long" in problem.value.message
