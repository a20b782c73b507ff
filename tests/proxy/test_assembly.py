"""A streamed answer put together: the message of the plain form, however the deltas were cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.wires.chat import MessageBuilder
from gyre.proxy.wires.completions import TextBuilder
from tests.proxy.json_text import TEXT

Json = dict[str, Any]
LONG_TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
CALLS = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
    st.sampled_from(["grep", "run"]),
    st.sampled_from(["", "{}", '{"q": "é\\n"}', '{"a":1.0,  "b":[1,2]}', "not json"]),
)


@st.composite
def messages(draw: st.DrawFn) -> Json:
    message: Json = {"role": "assistant", "content": draw(st.one_of(st.none(), LONG_TEXT))}
    for field in draw(st.sets(st.sampled_from(["reasoning", "reasoning_content", "refusal"]))):
        message[field] = draw(LONG_TEXT)
    if calls := draw(st.lists(CALLS, max_size=4)):
        message["tool_calls"] = [{"id": f"call_{at}", **call} for at, call in enumerate(calls)]
    return message


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def call_deltas(index: int, call: Json, size: int) -> Iterator[Json]:
    function = call["function"]
    head = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
    yield {"tool_calls": [head]}
    for piece in pieces(function["arguments"], size):
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


@st.composite
def deltas_of(draw: st.DrawFn, message: Json) -> list[Json]:
    """The message as deltas: each text in order, but all of them interleaved in any way."""
    size = draw(st.integers(1, 9))
    texts = [key for key in message if key not in ("role", "tool_calls") and message[key]]
    queues = [[{key: piece} for piece in pieces(message[key], size)] for key in texts]
    queues += [list(call_deltas(at, call, size)) for at, call in enumerate(message.get("tool_calls", ()))]
    deltas: list[Json] = [
        {"role": "assistant", "content": ""} if message["content"] else {"role": "assistant"}
    ]
    while queues := [queue for queue in queues if queue]:
        deltas.append(draw(st.sampled_from(queues)).pop(0))
    return [*deltas, {}]


def built(deltas: Sequence[Json]) -> Json:
    builder = MessageBuilder()
    for delta in deltas:
        builder.add(delta)
    message: Json = json.loads(builder.message())
    return message


@given(st.data())
def test_any_split_of_a_message_gives_the_plain_form(data: st.DataObject) -> None:
    message = data.draw(messages())
    assert built(data.draw(deltas_of(message))) == message


def test_parallel_calls_in_interleaved_pieces_keep_their_arguments_byte_for_byte() -> None:
    arguments = ['{"q": "a" ,"n":1.0}', '{"path":"\\u00e9"}']
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": text}}
             for i, text in enumerate(arguments)]  # fmt: skip
    queues = [list(call_deltas(at, call, 7)) for at, call in enumerate(calls)]
    deltas = [queue[at] for at in range(4) for queue in queues if at < len(queue)]
    assert [call["function"]["arguments"] for call in built(deltas)["tool_calls"]] == arguments


def test_a_call_that_names_no_index_is_one_of_its_own() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert built([{"tool_calls": [call]}, {"tool_calls": [call | {"id": "b"}]}])["tool_calls"] == [
        call,
        call | {"id": "b"},
    ]


def test_the_older_function_call_is_joined_too() -> None:
    deltas = [{"function_call": {"name": "f", "arguments": '{"a"'}}, {"function_call": {"arguments": ":1}"}}]
    assert built(deltas)["function_call"] == {"name": "f", "arguments": '{"a":1}'}


def test_fields_of_vendors_are_kept() -> None:
    deltas = [
        {"role": "assistant", "x": {"a": 1}, "parts": [1]},
        {"role": "assistant", "parts": [2], "x": None},
    ]
    assert built(deltas) == {"role": "assistant", "content": None, "x": {"a": 1}, "parts": [1, 2]}


GARBAGE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["index", "id", "function", "arguments", "name", "tool_calls", "content"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(["role", "content", "tool_calls", "reasoning", "function_call", "other"])


@given(st.lists(st.dictionaries(KEYS, GARBAGE, max_size=3), max_size=5))
def test_deltas_of_any_form_give_some_message(deltas: list[Json]) -> None:
    assert built(deltas)


@pytest.mark.parametrize(
    ("deltas", "empty"),
    [
        ([], True),
        ([{"role": "assistant", "content": ""}, {}], True),
        ([{"content": "x"}], False),
        ([{"reasoning": "x"}], False),
        ([{"tool_calls": [{"index": 0, "function": {"name": "f"}}]}], False),
        ([{"function_call": {"name": "f"}}], False),
    ],
)
def test_a_message_that_says_nothing_is_known_as_such(deltas: list[Json], empty: bool) -> None:
    builder = MessageBuilder()
    for delta in deltas:
        builder.add(delta)
    assert builder.empty == empty


@given(st.lists(TEXT))
def test_a_completion_is_its_pieces_joined(parts: list[str]) -> None:
    builder = TextBuilder()
    for part in parts:
        builder.add(part)
    assert json.loads(builder.message()) == {"text": "".join(parts)}
    assert builder.empty == (not "".join(parts))
