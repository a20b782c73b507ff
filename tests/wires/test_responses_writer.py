"""Answers of chat/completions as events of Responses."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.proxy.wires.translation import Ending
from tests.wires.responses_builders import (
    AGENTS,
    CALL_ID,
    EXEC,
    FIND,
    PATCH,
    USAGE,
    WEB,
    Json,
    chat_call,
    events,
    kinds,
    run,
    writer,
)

TOOLS = (EXEC, AGENTS, PATCH, FIND, WEB)


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
