"""Request bodies taken apart for storage: the pieces give back the very bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.calls import Wire
from gyre.proxy.capture.splice import parse_object
from gyre.proxy.log.envelope import restore
from gyre.proxy.log.record.parts import KnownMessages, Parts, take_apart
from tests.proxy.json_text import SPACES, TEXT, objects, values

MARKED = st.sampled_from(['"gyre:messages:,"', '"gyre:prompt"', '"gyre:"', '"\\"gyre:tools:, \\""'])


@st.composite
def arrays(draw: st.DrawFn, items: st.SearchStrategy[str]) -> str:
    """A list with one separator throughout, as programs write it, or with spaces of any kind."""
    separator = draw(st.sampled_from([",", ", ", " , ", ",\n"]))
    edge = draw(SPACES)
    return "[" + edge + separator.join(draw(st.lists(items, max_size=4))) + draw(SPACES) + "]"


LISTS = arrays(st.one_of(values(), MARKED))
IDS = arrays(st.integers(0, 150_000).map(str))
MEMBERS = st.one_of(
    st.tuples(st.sampled_from(["messages", "tools", "input"]), LISTS),
    st.tuples(st.sampled_from(["system", "instructions", "input"]), st.one_of(LISTS, values(TEXT), values())),
    st.tuples(st.just("prompt"), st.one_of(IDS, LISTS, values(TEXT), values())),
    st.tuples(st.sampled_from(["model", "user"]), st.one_of(values(), MARKED)),
)


def body_of(parts: Parts, prompt_ids: Sequence[int] | None) -> bytes:
    messages = [bytes(message) for message in parts.messages]
    return restore(parts.envelope, messages, [bytes(tool) for tool in parts.tools], prompt_ids)


def ids_in(text: bytes) -> list[int] | None:
    """The ids that an engine would report for this request's prompt."""
    prompt = json.loads(text).get("prompt")
    fits = isinstance(prompt, list) and all(type(i) is int and 0 <= i < 2**31 for i in prompt)
    return prompt if fits else None


WIRES = [Wire.CHAT, Wire.COMPLETIONS, Wire.MESSAGES, Wire.RESPONSES]


@given(objects(MEMBERS), st.sampled_from(WIRES), st.booleans())
def test_the_parts_of_any_layout_give_back_the_exact_body(text: str, wire: Wire, captured: bool) -> None:
    body = text.encode()
    prompt = ids_in(body) if captured else None
    ids = None if prompt is None else np.array(prompt, np.int32)
    parts = take_apart(body, parse_object(body), wire, ids)
    if parts.exact:
        assert body_of(parts, prompt) == body
    else:
        assert b'"gyre:' in body


def taken(body: bytes, wire: Wire = Wire.CHAT, prompt_ids: list[int] | None = None) -> Parts:
    ids = None if prompt_ids is None else np.array(prompt_ids, np.int32)
    parts = take_apart(body, parse_object(body), wire, ids)
    assert parts.exact
    assert body_of(parts, prompt_ids) == body
    return parts


def dumped(compact: bool, **fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":") if compact else (", ", ": ")).encode()


MESSAGES = [{"role": "system", "content": "é"}, {"role": "user", "content": "1"}]
TOOLS = [{"type": "function", "function": {"name": "grep"}}]


@pytest.mark.parametrize("compact", [True, False])
def test_messages_and_tools_are_cut_out_of_a_usual_body(compact: bool) -> None:
    parts = taken(dumped(compact, model="m", messages=MESSAGES, tools=TOOLS))
    assert [json.loads(bytes(message)) for message in parts.messages] == MESSAGES
    assert [json.loads(bytes(tool)) for tool in parts.tools] == TOOLS
    assert b"content" not in parts.envelope and b"grep" not in parts.envelope


def test_a_prompt_text_is_kept_like_a_message() -> None:
    parts = taken(b'{"prompt":"a\\u0062","n":1}', Wire.COMPLETIONS)
    assert (parts.kind, parts.messages) == ("prompt", [b'"a\\u0062"'])
    assert parts.envelope == b'{"prompt":"gyre:prompt","n":1}'


@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize("compact", [True, False])
def test_a_prompt_of_ids_is_not_stored_twice(count: int, compact: bool) -> None:
    ids = list(range(count))
    parts = taken(dumped(compact, prompt=ids), Wire.COMPLETIONS, ids)
    assert len(parts.envelope) < 40


@pytest.mark.parametrize("reported", [None, [1, 2], [1, 2, 4]])
def test_a_prompt_of_ids_that_the_engine_does_not_confirm_is_kept(reported: list[int] | None) -> None:
    body = b'{"prompt":[1,2,3]}'
    assert taken(body, Wire.COMPLETIONS, reported).envelope == body


@pytest.mark.parametrize("count", [2, 2000])
def test_a_batch_of_prompts_is_kept_whole(count: int) -> None:
    body = dumped(True, prompt=["first", "second"] * count)
    assert taken(body, Wire.COMPLETIONS, [1, 2]).envelope == body


def test_a_prompt_beside_messages_does_not_take_their_place() -> None:
    taken(b'{"messages":[{"role":"user"}],"prompt":"p"}', Wire.COMPLETIONS)
    taken(b'{"messages":[{"role":"user"}],"prompt":"p"}', Wire.CHAT)


@pytest.mark.parametrize("field", ["user", "gyre:messages:,"])
def test_a_body_with_a_marker_of_its_own_is_not_exact(field: str) -> None:
    body = dumped(True, messages=MESSAGES, **{field: "gyre:tools:,"})
    assert not take_apart(body, parse_object(body), Wire.CHAT, None).exact


def test_a_marker_inside_a_message_does_no_harm() -> None:
    taken(dumped(True, messages=[{"role": "user", "content": "gyre:messages:,"}, "gyre:tools:,"]))


def test_an_envelope_that_is_not_utf8_is_not_exact() -> None:
    body = b'{"messages":[{"role":"user"}],"user":"\xff"}'
    assert not take_apart(body, parse_object(body), Wire.CHAT, None).exact


def test_a_message_is_new_until_it_is_on_disk() -> None:
    known, bodies = KnownMessages(), [b'{"a":1}', b'{"a":2}']
    first = known.addresses(list(bodies), "message")
    assert first == known.addresses(list(bodies), "message")
    known.remember(first[1][:1])
    again = known.addresses(list(bodies), "message")
    assert again[0] == first[0] == [hashlib.sha256(body).digest()[:16] for body in bodies]
    assert [message.body for message in again[1]] == [b'{"a":2}']


def test_the_oldest_known_messages_are_forgotten() -> None:
    known = KnownMessages(most=2)
    for body in (b"1", b"2", b"3"):
        known.remember(known.addresses([body], "message")[1])
    assert [m.body for m in known.addresses([b"1", b"2", b"3"], "message")[1]] == [b"1"]


def test_a_message_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        KnownMessages().addresses([b'"\xff"'], "message")


SYSTEM = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]


@pytest.mark.parametrize("compact", [True, False])
def test_a_system_prompt_beside_the_messages_becomes_the_first_of_them(compact: bool) -> None:
    body = dumped(compact, system=SYSTEM, messages=[{"role": "user", "content": "hi"}], max_tokens=9)
    parts = taken(body, Wire.MESSAGES)
    stored = [json.loads(bytes(message)) for message in parts.messages]
    assert stored == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hi"}]
    assert json.loads(parts.envelope)["max_tokens"] == 9 and b"Be brief" not in parts.envelope


def test_instructions_and_an_input_of_one_text_become_messages() -> None:
    parts = taken(dumped(True, model="m", input="hi", instructions="Be brief."), Wire.RESPONSES)
    stored = [json.loads(bytes(message)) for message in parts.messages]
    assert stored == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    items = [{"type": "message", "role": "user", "content": []}, {"type": "reasoning", "summary": []}]
    listed = taken(dumped(True, input=items, tools=[{"type": "function"}]), Wire.RESPONSES)
    assert [json.loads(bytes(item)) for item in listed.messages] == items and len(listed.tools) == 1
