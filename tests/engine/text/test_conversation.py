"""Chat requests in OpenAI's shapes, brought into one form or refused."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.elastic.engine.text.conversation import read_conversation, read_message
from gyre.proxy.errors import RequestError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call(arguments: object, **other: object) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}} | other


def arguments_of(arguments: object) -> object:
    message = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    return read_message(message)["tool_calls"][0]["function"]["arguments"]


def test_plain_messages_stay_as_they_are() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u", "name": "n"}]
    assert read_conversation(messages).messages == tuple(messages)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_message({"role": "user", "content": parts})["content"] == "a\nb"


def test_a_developer_is_the_system_and_no_content_is_empty() -> None:
    assert read_message({"role": "developer", "content": None}) == {"role": "system", "content": ""}


def test_a_refusal_is_text() -> None:
    assert (
        read_message({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})["content"]
        == "no"
    )


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_has_one_name(key: str) -> None:
    assert read_message({"role": "assistant", "content": "", key: "hm"})["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"a": [1.5, "é"]}', {"a": [1.5, "é"]}),
        ({"a": 1}, {"a": 1}),
        ("", ""),
        ("[1]", "[1]"),
        ('{"a": ', '{"a": '),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", '{"a": ' + "[" * 5000 + "]" * 5000 + "}"),
        (None, {}),
    ],
)
def test_arguments_are_objects_where_they_can_be(given: object, read: object) -> None:
    assert arguments_of(given) == read


def test_answers_of_tools_keep_their_call() -> None:
    message = {"role": "tool", "tool_call_id": "c1", "content": "42", "extra": 1}
    assert read_message(message) == {"role": "tool", "tool_call_id": "c1", "content": "42"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "messages must be a list"),
        ([], "at least one"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\].role must be text"),
        ([{"role": "user", "content": 1}], r"messages\[0\].content must be text or a list"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r"\[0\] is of type 'image_url'.*text only",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text must be text"),
        ([{"role": "assistant", "tool_calls": {}}], r"tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [call("", type="custom")]}], "only function calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], r"tool_calls\[0\].function must be an object"),
        ([{"role": "assistant", "tool_calls": [call(7)]}], "arguments must be text"),
        ([{"role": "assistant", "function_call": {}}], "use tool_calls"),
    ],
)
def test_odd_messages_are_refused_with_their_place(messages: object, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        read_conversation(messages)
    assert refused.value.status == 400


@pytest.mark.parametrize("tools", [{}, ["f"], [{"type": "custom"}], [{"type": "function"}], [{"name": "f"}]])
def test_odd_tools_are_refused(tools: object) -> None:
    with pytest.raises(RequestError, match="tools"):
        read_conversation([{"role": "user", "content": "x"}], tools)


def test_tools_and_template_arguments_are_kept() -> None:
    read = read_conversation([{"role": "user", "content": "x"}], [TOOL], {"enable_thinking": False})
    assert (read.tools, read.kwargs) == ((TOOL,), {"enable_thinking": False})
    with pytest.raises(RequestError, match="chat_template_kwargs must be an object"):
        read_conversation([{"role": "user", "content": "x"}], None, [])
