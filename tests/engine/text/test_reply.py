"""Replies taken apart: reasoning, content and calls, in any chunks."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.elastic.engine.text.chatml import chatml
from gyre.elastic.engine.text.reply import Kind, Piece, Reply, ReplyForm, ReplyParser, reply_form

BOTH = ReplyForm(reasoning=True, tools=True)
FORMS = st.builds(
    ReplyForm,
    reasoning=st.booleans(),
    tools=st.booleans(),
    thinking=st.booleans(),
    max_calls=st.sampled_from([None, 1]),
)
GOOD = '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>'
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "</tool", "<", GOOD, GOOD[:-1]]
JSON = ['{"name": "f", ', '"arguments": ', '{"x": 1}', "{}", "}", "{", '"', "\\", "[", "]"]
TEXTS = st.lists(st.sampled_from([*TAGS, *JSON, "a", "é", " ", "\n"]), max_size=14).map("".join)


def pieces(form: ReplyForm, chunks: list[str]) -> list[Piece]:
    parser = ReplyParser(form)
    told = [piece for chunk in chunks for piece in parser.add(chunk)]
    return told + parser.finish()


def joined(told: list[Piece]) -> list[tuple[Kind, str]]:
    """Pieces of one kind that follow each other, as one; calls stay apart."""
    groups = groupby(enumerate(told), key=lambda at: (at[1].kind, at[1].call and at[0]))
    return [(kind, "".join(piece.text for _, piece in group)) for (kind, _), group in groups]


def parsed(text: str, form: ReplyForm = BOTH) -> Reply:
    parser = ReplyParser(form)
    parser.add(text)
    parser.finish()
    return parser.reply


def told_calls(reply: Reply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.calls]


@given(form=FORMS, text=TEXTS, data=st.data())
def test_chunks_make_no_difference_and_nothing_is_lost(
    form: ReplyForm, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = joined(pieces(form, [text]))
    assert "".join(text for _, text in whole) == text
    assert joined(pieces(form, chunks)) == whole
    assert joined(pieces(form, list(text))) == whole


def test_a_reply_with_everything() -> None:
    text = (
        "<think>\nI look.\n</think>\n\nOne moment.\n<tool_call>\n"
        '{"name": "look", "arguments": {"at":  "a\\u00e9",\n"n": 1.0}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "wait"}</tool_call>\n'
    )
    reply = parsed(text)
    assert (reply.reasoning, reply.content) == ("I look.", "One moment.")
    assert told_calls(reply) == [("look", '{"at":  "a\\u00e9",\n"n": 1.0}'), ("wait", "{}")]
    assert [call.index for call in reply.calls] == [0, 1]
    assert len({call.id for call in reply.calls}) == 2


def test_text_between_calls_is_content() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reply = parsed(f"{call} and {call} done")
    assert (reply.content, len(reply.calls)) == ("anddone", 2)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>f(x)</tool_call>",
        '\n <tool_call> {"name": "f", "argu',
        "<tool_call>" + '{"name": "f", "arguments": ' + "[" * 5000 + "]" * 5000 + "}</tool_call>",
        "<tool_call><tool_call>",
        "a <tool_",
    ],
)
def test_malformed_calls_are_content_verbatim(text: str) -> None:
    assert parsed(text) == Reply(content=text)


@pytest.mark.parametrize(
    "text", ["[", "}", "f", '{"name" <b', '{"name": "f\nx', '{"name": "f"}', GOOD[11:-12] + "x"]
)
def test_a_malformed_call_is_told_as_soon_as_it_is_one(text: str) -> None:
    told = ReplyParser(BOTH).add("<tool_call>" + text)
    assert joined(told) == [(Kind.CONTENT, "<tool_call>" + text)]


def test_quotes_and_braces_in_strings_are_no_end() -> None:
    arguments = r'{"x": "\"}}</tool_call>", "y": ["{", {}]}'
    reply = parsed(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert told_calls(reply) == [("f", arguments)]


def test_a_good_call_after_a_malformed_one_is_found() -> None:
    reply = parsed(f'<tool_call>{{"name": "g", </tool_call>\n{GOOD}')
    assert reply.content == '<tool_call>{"name": "g", </tool_call>'
    assert told_calls(reply) == [("f", '{"x": "</tool_call>"}')]


@pytest.mark.parametrize("missing", range(1, len("</tool_call>") + 1))
def test_a_call_is_whole_though_its_last_tag_lacks_at_the_end(missing: int) -> None:
    assert parsed(GOOD[:-missing]).calls[0].name == "f"


def test_nothing_of_a_call_is_told_before_it_is_whole() -> None:
    parser = ReplyParser(BOTH)
    told = [piece for char in "Hm. " + GOOD for piece in parser.add(char) if piece.kind is not Kind.MARKER]
    *content, call = told
    assert "".join(piece.text for piece in content) == "Hm."
    assert call.kind is Kind.CALL


def test_content_is_told_at_once() -> None:
    parser = ReplyParser(BOTH)
    assert [piece.text for word in ["One", " two", " <", "b>"] for piece in parser.add(word)] == [
        "One",
        " two",
        " <b>",
    ]


def test_without_tools_and_reasoning_all_is_content() -> None:
    text = f" <think>a</think> {GOOD} "
    assert parsed(text, ReplyForm()) == Reply(content=text)


def test_reasoning_that_the_prompt_opened() -> None:
    form = ReplyForm(reasoning=True, thinking=True)
    assert parsed("\nso\n</think>\n\nyes", form) == Reply(reasoning="so", content="yes")
    assert parsed("<think>\nso</think>yes", form) == Reply(reasoning="so", content="yes")
    assert parsed("so and so", form) == Reply(reasoning="so and so")


def test_a_call_within_reasoning_is_reasoning() -> None:
    assert parsed(f"<think>{GOOD}</think>").calls == ()


def test_a_think_tag_later_on_is_content() -> None:
    assert parsed("so <think>x</think>").content == "so <think>x</think>"


def test_only_so_many_calls_are_read() -> None:
    reply = parsed(GOOD + GOOD, ReplyForm(tools=True, max_calls=1))
    assert (len(reply.calls), reply.content) == (1, GOOD)


def test_the_message_and_how_it_ended() -> None:
    reply = parsed("<think>hm</think>" + GOOD)
    message = reply.message()
    (call,) = message["tool_calls"]
    assert (message["role"], message["content"], message["reasoning"]) == ("assistant", None, "hm")
    assert (call["type"], call["function"]["name"]) == ("function", "f")
    assert json.loads(call["function"]["arguments"]) == {"x": "</tool_call>"}
    assert [reply.finish_reason(reason) for reason in ("stop", "length")] == ["tool_calls", "length"]
    assert parsed("hi").message() == {"role": "assistant", "content": "hi"}
    assert parsed("hi").finish_reason("stop") == "stop"


def test_deltas_are_those_of_openai() -> None:
    deltas = [piece.delta() for piece in pieces(BOTH, [f"<think>a</think>b{GOOD}"])]
    told = [delta for delta in deltas if delta]
    assert told[:2] == [{"reasoning": "a"}, {"content": "b"}]
    (call,) = told[2]["tool_calls"]
    assert (call["index"], call["type"], call["function"]["name"]) == (0, "function", "f")


def test_the_template_decides_what_is_looked_for() -> None:
    ours = chatml()
    assert reply_form(ours, "…assistant\n", tools=True) == BOTH
    assert reply_form(ours, "…assistant\n<think>\n", tools=False) == ReplyForm(reasoning=True, thinking=True)
    assert reply_form("{{ messages }}", "<think>", tools=True) == ReplyForm()
    assert reply_form("<tool_call>\n<function=f>", "", tools=True) == ReplyForm()
    assert reply_form(ours, "", tools=True, parallel_tool_calls=False).max_calls == 1
