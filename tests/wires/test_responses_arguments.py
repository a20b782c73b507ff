"""The text of a custom tool inside its JSON, decoded at any cut; arguments spelled as sampled."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gyre.proxy.wires.responses.arguments import InputReader, as_sampled, input_of, of_custom
from tests.proxy.json_text import TEXT
from tests.wires.responses_builders import dialect

PIECES = st.lists(st.sampled_from([*'ab"\\/u0dDeEn8c{}:, \n', "\\ud83d", "\\ude80", "é", "🎉"]))


def in_pieces(text: str, cuts: list[int]) -> str:
    """The text, fed in pieces of these lengths."""
    reader, out = InputReader(), ""
    for length in cuts:
        out += reader.feed(text[:length])
        text = text[length:]
    return out + reader.feed(text) + reader.finish()


@given(TEXT, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 3)))
def test_what_a_model_wrote_is_what_json_says_it_is(
    text: str, ascii_only: bool, indent: int | None, cuts: list[int]
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)
    assert in_pieces(arguments, cuts) == text


@given(PIECES.map("".join), st.booleans(), st.lists(st.integers(0, 4)))
@example("\\ud83d\\ude80", True, [12, 3, 4, 2])
@example("\\ud83dx", True, [10, 7])
def test_how_it_is_cut_changes_nothing(inside: str, headed: bool, cuts: list[int]) -> None:
    arguments = '{"input": "' + inside if headed else inside
    assert in_pieces(arguments, cuts) == input_of(arguments)


@given(PIECES.map("".join))
def test_any_text_can_be_sent_on(inside: str) -> None:
    text = input_of('{"input": "' + inside)
    assert text.encode().decode() == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb", "more": 1}', "a\nb"),
        ('{"why": "so", "input": "a"}', "a"),
        ('{"input": "one line\nanother"}', "one line\nanother"),
        ('{"input": "a \\d b"}', "a \\d b"),
        ('{"input": "cut o', "cut o"),
        ('{"input": "cut \\', "cut "),
        ('{"input": "cut \\u00', "cut "),
        ('{"input": "half \\ud83d', "half \ufffd"),
        ('{"input": "half \\ud83d"}', "half \ufffd"),
        ('{"input": "\\ud83d\\ude80"}', "🚀"),
        ('{"input": "\\uzzzz"}', "\\uzzzz"),
        ('{"input": 3}', '{"input": 3}'),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('["input"]', '["input"]'),
        ("", ""),
    ],
)
def test_what_is_no_such_json_stays_what_the_model_wrote(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


def test_text_is_told_before_its_end() -> None:
    reader = InputReader()
    assert [reader.feed(piece) for piece in ('{"inp', 'ut":"a', "b\\", 'nc"', "}")] == [
        "",
        "a",
        "b",
        "\nc",
        "",
    ]


def test_a_text_without_a_head_is_searched_for_one_only_so_long() -> None:
    reader = InputReader()
    assert all(reader.feed("x" * 100) == "" for _ in range(1000))
    assert reader.finish() == "x" * 100_000


@pytest.mark.parametrize(
    "given_text", ['{"a":1,"b":[true]}', '{"b": [true], "a": 1.0}', '{ "a": 1, "b":[true] }']
)
def test_arguments_get_their_spelling_back(given_text: str) -> None:
    sampled = '{"a": 1, "b":   [true]}'
    assert as_sampled(dialect({"c1": sampled}), "c1", given_text) == sampled


@pytest.mark.parametrize(
    "given_text", ['{"a":2}', '{"a":true}', '{"a":"1"}', "{}", "", '{"a":1', "[" * 100_000, "null"]
)
def test_arguments_that_say_something_else_stay(given_text: str) -> None:
    assert as_sampled(dialect({"c1": '{"a": 1}'}), "c1", given_text) == given_text


def test_no_arguments_are_none_in_either_spelling() -> None:
    assert as_sampled(dialect({"c1": ""}), "c1", "{}") == ""
    assert as_sampled(dialect({"c1": "{ }"}), "c1", "") == "{ }"


def test_arguments_that_nobody_remembers_stay() -> None:
    assert as_sampled(dialect(), "c1", '{"a":  1}') == '{"a":  1}'


@given(TEXT)
def test_a_custom_tools_text_becomes_arguments_that_hold_it(text: str) -> None:
    assert input_of(of_custom(dialect(), "c1", text)) == text


@pytest.mark.parametrize("sampled", ['{"input":"a\\u00e9"}', '{"why":1, "input": "aé"}', "aé"])
def test_a_custom_tools_arguments_get_their_spelling_back(sampled: str) -> None:
    assert of_custom(dialect({"c1": sampled}), "c1", "aé") == sampled
    assert of_custom(dialect({"c1": sampled}), "c1", "other") == '{"input": "other"}'
