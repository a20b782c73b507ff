"""Request bodies put together from their parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.log.envelope import restore

SEPARATORS = st.sampled_from([b",", b", "])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PIECES = st.lists(TEXT.map(lambda text: b'{"content":"%s"}' % text.encode()), max_size=5)


def test_messages_and_tools_go_where_their_markers_are() -> None:
    envelope = b'{"messages":"gyre:messages:, ","tools": "gyre:tools:,","n":1}'
    body = restore(envelope, [b'{"a":1}', b'{"b":2}'], [b"[]", b"3"], None)
    assert body == b'{"messages":[{"a":1}, {"b":2}],"tools": [[],3],"n":1}'


def test_a_prompt_text_is_the_only_entry() -> None:
    assert restore(b'{"prompt":"gyre:prompt"}', [b'"say \\"hi\\""'], [], None) == b'{"prompt":"say \\"hi\\""}'


def test_prompt_ids_are_written_as_numbers() -> None:
    assert restore(b'{"prompt":"gyre:prompt_ids:, "}', [], [], [1, 20, 300]) == b'{"prompt":[1, 20, 300]}'


def test_an_empty_list_is_an_empty_list() -> None:
    assert restore(b'{"messages":"gyre:messages:,"}', [], [], None) == b'{"messages":[]}'


def test_markers_inside_messages_are_left_alone() -> None:
    tricky = b'{"content":"\\"gyre:tools:,\\" and "gyre:prompt""}'
    body = restore(b'{"messages":"gyre:messages:,"}', [tricky], [b"T"], [7])
    assert body == b'{"messages":[' + tricky + b"]}"


@given(PIECES, PIECES, SEPARATORS, SEPARATORS, st.binary(max_size=20).map(lambda b: b.hex().encode()))
def test_any_body_comes_back(
    messages: list[bytes], tools: list[bytes], one: bytes, other: bytes, rest: bytes
) -> None:
    cut = b'{"x":"%s","messages":"gyre:messages:%s","tools":"gyre:tools:%s"}' % (rest, one, other)
    whole = b'{"x":"%s","messages":[%s],"tools":[%s]}' % (rest, one.join(messages), other.join(tools))
    assert restore(cut, messages, tools, None) == whole
