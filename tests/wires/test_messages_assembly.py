"""Native Messages answers, streamed and plain, as they are recorded."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.canonical import response_blocks
from gyre.proxy.wires.messages.assembly import MessagesAssembly, read_plain
from gyre.proxy.wires.messages.writer import MessagesWriter
from gyre.proxy.wires.translation import Assembly, Ending, Json
from tests.wires.messages_builders import (
    PATIENT,
    chat_answers,
    chat_call,
    deltas_of,
    events_of,
    text,
    written,
)

ENDING = Ending("stop", usage={"prompt_tokens": 10, "completion_tokens": 4})


def assembled(events: list[Json]) -> Assembly:
    assembly = MessagesAssembly()
    for event in events:
        assembly.add(event)
    return assembly


def everything(assembly: Assembly) -> tuple[Any, ...]:
    return (
        assembly.done,
        assembly.failed,
        assembly.finish_reason,
        assembly.usage,
        assembly.message(),
        assembly.meta(),
    )


@PATIENT
@given(st.data())
def test_a_stream_is_read_as_its_plain_answer_is(data: st.DataObject) -> None:
    message = data.draw(chat_answers())
    stream, answer = written(data.draw(deltas_of(message)), ENDING)
    streamed, plain = assembled(events_of(stream)), read_plain(answer)
    assert everything(streamed) == everything(plain)
    assert (streamed.done, streamed.failed) == (True, None)
    assert streamed.message() == {"role": "assistant", "content": answer["content"]}
    assert response_blocks(orjson.dumps(streamed.message())) == response_blocks(orjson.dumps(message))


def test_counts_replace_those_before_and_are_never_added() -> None:
    first = {"input_tokens": 90, "cache_read_input_tokens": 10, "output_tokens": 1, "server_tool_use": None}
    assembly = assembled(
        [
            {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": first}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": None},
                "usage": {"input_tokens": None, "output_tokens": 9},
            },
        ]
    )
    assert assembly.usage == {"input_tokens": 90, "cache_read_input_tokens": 10, "output_tokens": 9}
    assert assembly.finish_reason == assembly.meta()["stop_reason"] == "end_turn"


def test_the_other_fields_are_kept_beside_the_message() -> None:
    _, answer = written([{"content": "a"}], Ending("stop", "END"))
    assert read_plain(answer).meta() == {
        "id": "msg_c1",
        "type": "message",
        "model": "m",
        "stop_reason": "stop_sequence",
        "stop_sequence": "END",
    }


def test_a_cut_stream_gives_what_came() -> None:
    deltas: list[Json] = [
        {"reasoning": "so"},
        {"content": "ok"},
        {"tool_calls": [chat_call("1", '{"a": "b')]},
    ]
    stream, _ = written(deltas, ENDING)
    events = events_of(stream)
    cut = assembled(events[: [event["type"] for event in events].index("message_delta") - 1])
    assert (cut.done, cut.finish_reason) == (False, None)
    assert cut.message()["content"] == [
        {"type": "thinking", "thinking": "so", "signature": "gyre"},
        text("ok"),
        {"type": "tool_use", "id": "1", "name": "Bash", "input": '{"a": "b'},
    ]
    (_, _, block) = response_blocks(orjson.dumps(cut.message()))
    assert block.text == 'Bash\n{"a": "b'


def test_any_prefix_of_a_stream_is_readable() -> None:
    stream, _ = written([{"content": "a"}, {"tool_calls": [chat_call("1", "{}")]}], ENDING)
    events = events_of(stream)
    for end in range(len(events)):
        assert not assembled(events[:end]).done


def test_citations_of_a_text_are_kept() -> None:
    assembly = assembled(
        [
            {"type": "content_block_start", "index": 0, "content_block": text("")},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "citations_delta", "citation": {"n": 1}},
            },
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        ]
    )
    assert assembly.message()["content"] == [text("a", citations=[{"n": 1}])]


def test_an_error_is_what_the_engine_said() -> None:
    (event,) = events_of(MessagesWriter("c1", "m").failed(529, "too busy", "overloaded"))
    for assembly in (assembled([event]), read_plain(event)):
        assert (assembly.failed, assembly.done) == ("overloaded_error: too busy", False)
    assert assembled([{"type": "error", "error": {"message": "odd"}}]).failed == "odd"
    assert assembled([{"type": "error"}]).failed == "the engine sent an error without words"


_ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(
                ["type", "index", "delta", "text", "usage", "content", "role", "partial_json", "citation"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=4,
)
_TYPES = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "message_delta", "error", "ping", "new"]
)
_FIELDS = st.sampled_from(["message", "index", "content_block", "delta", "usage", "error"])
_DELTAS = st.sampled_from(["text_delta", "input_json_delta", "citations_delta"])


@PATIENT
@given(st.lists(st.tuples(_TYPES, st.dictionaries(_FIELDS, _ODD, max_size=4), _DELTAS), max_size=6))
def test_odd_events_never_raise(events: list[tuple[str, Json, str]]) -> None:
    assembly = MessagesAssembly()
    for kind, fields, named in events:
        assembly.add({**fields, "type": kind})
        assembly.add({"delta": {"type": named}, "index": 0, **fields, "type": "content_block_delta"})
    json.dumps([assembly.message(), assembly.meta(), assembly.usage])


@pytest.mark.parametrize("answer", [{}, {"content": "a"}, {"type": "message"}, {"content": [3], "usage": []}])
def test_odd_plain_answers_never_raise(answer: Json) -> None:
    assembly = read_plain(answer)
    orjson.dumps([assembly.message(), assembly.meta()])
    assert assembly.done == isinstance(answer.get("content"), list)
