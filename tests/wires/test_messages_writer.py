"""Answers of chat/completions as Messages events, case by case."""

from __future__ import annotations

import json

import pytest

from gyre.proxy.wires.messages.writer import MessagesWriter
from gyre.proxy.wires.translation import Ending, Json, Writer
from tests.wires.messages_builders import chat_call, events_of, text, written


def told(*deltas: Json, reason: str | None = "stop", matched: str | None = None) -> list[Json]:
    """Events between the start and the end of the message."""
    stream, _ = written(list(deltas), Ending(reason, matched))
    return events_of(stream)[1:-2]


def ended(
    *deltas: Json, reason: str | None = "stop", matched: str | None = None
) -> tuple[str | None, str | None]:
    stream, answer = written(list(deltas), Ending(reason, matched))
    delta = events_of(stream)[-2]["delta"]
    assert delta == {key: answer[key] for key in ("stop_reason", "stop_sequence")}
    return delta["stop_reason"], delta["stop_sequence"]


def part(index: int, arguments: str, **more: str) -> Json:
    """One piece of a call; with an id and a name it is the first."""
    ident = {"id": more["id"]} if "id" in more else {}
    name = {"name": more["name"]} if "name" in more else {}
    return {"tool_calls": [{"index": index, **ident, "function": {**name, "arguments": arguments}}]}


def shape(events: list[Json]) -> list[tuple[str, int, str]]:
    """Type, index and text of each event."""
    fields = ("text", "thinking", "partial_json", "signature", "name")
    return [
        (
            event["type"].removeprefix("content_block_"),
            event["index"],
            next((said[field] for field in fields if said.get(field)), ""),
        )
        for event in events
        for said in [event.get("delta") or event.get("content_block") or {}]
    ]


def test_thought_text_and_call_are_blocks_one_after_the_other() -> None:
    events = told(
        {"role": "assistant", "content": ""},
        {"reasoning": "so"},
        {"reasoning": " be it"},
        {"content": "ok"},
        part(0, "", id="call_a", name="Bash"),
        part(0, '{"command": '),
        part(0, '"ls"}'),
        reason="tool_calls",
    )
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert events[5]["content_block"] == {"type": "text", "text": ""}
    assert events[8]["content_block"] == {"type": "tool_use", "id": "call_a", "name": "Bash", "input": {}}
    assert shape(events) == [
        ("start", 0, ""),
        ("delta", 0, "so"),
        ("delta", 0, " be it"),
        ("delta", 0, "gyre"),
        ("stop", 0, ""),
        ("start", 1, ""),
        ("delta", 1, "ok"),
        ("stop", 1, ""),
        ("start", 2, "Bash"),
        ("delta", 2, '{"command": '),
        ("delta", 2, '"ls"}'),
        ("stop", 2, ""),
    ]


def test_the_first_event_names_the_row_and_what_is_known_of_its_cost() -> None:
    (started,) = events_of(MessagesWriter("00ab", "claude-x").start(812))
    assert started["message"] == {
        "id": "msg_00ab",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 812, "output_tokens": 0},
    }
    (unknown,) = events_of(MessagesWriter("00ab", "m").start(None))
    assert unknown["message"]["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_each_delta_goes_on_at_once() -> None:
    writer: Writer = MessagesWriter("c1", "m")
    writer.start(None)
    assert shape(events_of(writer.delta({"content": "a"}))) == [("start", 0, ""), ("delta", 0, "a")]
    assert shape(events_of(writer.delta({"content": "b"}))) == [("delta", 0, "b")]
    assert shape(events_of(writer.delta(part(0, '{"a":', id="1", name="Bash"))))[-1] == ("delta", 1, '{"a":')
    writer.delta(part(0, "1}"))
    # The first call is whole, so the second need not wait for the end.
    second = shape(events_of(writer.delta(part(1, "{", id="2", name="Read"))))
    assert second == [("stop", 1, ""), ("start", 2, "Read"), ("delta", 2, "{")]


def test_arguments_of_a_later_call_wait_for_the_earlier_one() -> None:
    events = told(
        part(0, '{"a"', id="1", name="A"),
        part(1, '{"b"', id="2", name="B"),
        {"content": "aside"},
        part(1, ":2}"),
        part(0, ":1}"),
        part(1, "\n"),
    )
    assert shape(events) == [
        ("start", 0, "A"),
        ("delta", 0, '{"a"'),
        ("delta", 0, ":1}"),
        ("stop", 0, ""),
        ("start", 1, "B"),
        ("delta", 1, '{"b":2}'),
        ("stop", 1, ""),
        ("start", 2, ""),
        ("delta", 2, "aside"),
        ("stop", 2, ""),
    ]


def test_what_comes_after_whole_arguments_changes_neither_form() -> None:
    deltas = [part(0, "{}", id="1", name="A"), part(1, "{", id="2", name="B"), part(0, "x"), part(1, "}")]
    _, answer = written(deltas, Ending("tool_calls"))
    assert [block["input"] for block in answer["content"]] == [{}, {}]
    assert "x" not in [said for _, _, said in shape(told(*deltas))]


def test_calls_that_never_become_json_still_come_whole_and_in_order() -> None:
    deltas = [part(0, '{"a', id="1", name="A"), part(1, "[1]", id="2", name="B"), part(0, '": tru')]
    _, answer = written(deltas, Ending("length"))
    assert shape(told(*deltas, reason="length")) == [
        ("start", 0, "A"),
        ("delta", 0, '{"a'),
        ("delta", 0, '": tru'),
        ("stop", 0, ""),
        ("start", 1, "B"),
        ("delta", 1, "[1]"),
        ("stop", 1, ""),
    ]
    assert [block["input"] for block in answer["content"]] == [{"_raw": '{"a": tru'}, {"_raw": "[1]"}]


def test_white_space_before_arguments_waits_for_them() -> None:
    events = told(part(0, " ", id="1", name="A"), part(0, "\n"), part(0, "{"), part(0, "}"))
    assert shape(events) == [("start", 0, "A"), ("delta", 0, " \n{"), ("delta", 0, "}"), ("stop", 0, "")]
    assert shape(told(part(0, " ", id="1", name="A"))) == [("start", 0, "A"), ("stop", 0, "")]


def test_a_call_waits_for_its_name() -> None:
    deltas = [part(0, "", id="1"), part(0, "{", name="A"), part(0, "}", name="other")]
    events = told(*deltas)
    assert written(deltas, Ending("stop"))[1]["content"][0]["name"] == "A"
    assert shape(events) == [("start", 0, "A"), ("delta", 0, "{"), ("delta", 0, "}"), ("stop", 0, "")]


def test_a_call_without_an_id_gets_one() -> None:
    _, answer = written([part(0, "{}", name="A"), part(1, "{}", name="B")], Ending("tool_calls"))
    assert [block["id"] for block in answer["content"]] == ["toolu_c1_0", "toolu_c1_1"]


def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    pieces = [
        {"id": "1", "function": {"name": "A", "arguments": '{"a":'}},
        {"id": "1", "function": {"arguments": "1}"}},
        {"id": "2", "function": {"name": "B", "arguments": "{}"}},
    ]
    _, answer = written([{"tool_calls": [piece]} for piece in pieces], Ending("tool_calls"))
    assert [(block["name"], block["input"]) for block in answer["content"]] == [("A", {"a": 1}), ("B", {})]


def test_a_call_without_arguments_has_none() -> None:
    _, answer = written([{"tool_calls": [chat_call("1", "")]}], Ending("tool_calls"))
    assert answer["content"] == [{"type": "tool_use", "id": "1", "name": "Bash", "input": {}}]


def test_the_form_of_calls_that_came_first() -> None:
    deltas = [{"function_call": {"name": "A"}}, {"function_call": {"arguments": '{"a": 1}'}}]
    _, answer = written(deltas, Ending("function_call"))
    assert answer["content"] == [{"type": "tool_use", "id": "toolu_c1_0", "name": "A", "input": {"a": 1}}]
    assert answer["stop_reason"] == "tool_use"


def test_thoughts_under_both_names_are_said_once() -> None:
    _, answer = written([{"reasoning": "a", "reasoning_content": "a"}], Ending("stop"))
    assert [block["thinking"] for block in answer["content"]] == ["a"]


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"content": None, "reasoning": None, "tool_calls": None, "function_call": None},
        {"content": "", "reasoning": "", "tool_calls": []},
        {"content": 3, "reasoning": ["a"], "tool_calls": {"a": 1}},
        {"tool_calls": [None, 3]},
    ],
)
def test_nothing_said_is_no_event(delta: Json) -> None:
    assert told(delta) == []


CALL = part(0, "{}", id="1", name="A")


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "tool_use"),
        ("function_call", "tool_use"),
        ("abort", None),
        ("novel", None),
        (None, None),
    ],
)
def test_stop_reasons(reason: str | None, stop_reason: str | None) -> None:
    assert ended({"content": "a"}, reason=reason) == (stop_reason, None)


def test_a_stop_string_is_named() -> None:
    assert ended({"content": "a"}, matched="END") == ("stop_sequence", "END")


def test_calls_make_it_tool_use_unless_a_stop_string_cut_them() -> None:
    assert ended(CALL) == ended(CALL, matched="END") == ("tool_use", None)
    assert ended(part(0, '{"a": ', id="1", name="A"), matched="END") == ("stop_sequence", "END")
    assert ended(CALL, reason="length") == ("max_tokens", None)


def test_a_refusal_is_text_and_a_reason() -> None:
    _, answer = written([{"refusal": "I "}, {"refusal": "won't"}], Ending("stop"))
    assert (answer["content"], answer["stop_reason"]) == ([text("I won't")], "refusal")


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}},
            {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 5},
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": None},
            {"input_tokens": 100, "output_tokens": 5},
        ),
        ({"completion_tokens": 5}, {"input_tokens": 7, "output_tokens": 5}),
        (None, {"input_tokens": 7, "output_tokens": 0}),
    ],
)
def test_usage_counts_cached_tokens_apart(usage: Json | None, said: Json) -> None:
    stream, answer = written([{"content": "a"}], Ending("stop", usage=usage))
    assert events_of(stream)[-2]["usage"] == answer["usage"] == said


def test_a_stream_that_fails_says_so_and_nothing_of_an_end() -> None:
    writer = MessagesWriter("c1", "m")
    stream = writer.start(3) + writer.delta({"content": "a"}) + writer.failed(529, "too busy", "overloaded")
    events = events_of(stream)
    assert events[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "too busy"}}
    assert "message_stop" not in [event["type"] for event in events]


def test_two_hundred_kilobytes_of_arguments_come_whole() -> None:
    whole = json.dumps({"content": "x" * 200_000})
    pieces = [part(0, whole[at : at + 7]) for at in range(0, len(whole), 7)]
    stream, answer = written([part(0, "", id="1", name="Write"), *pieces], Ending("tool_calls"))
    assert answer["content"][0]["input"] == json.loads(whole)
    assert len(events_of(stream)) == len(pieces) + 5
