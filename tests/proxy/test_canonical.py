"""Messages of three wires in one canonical form."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gyre.proxy.canonical import Block, Kind, arguments_of, blocks_of, response_blocks


def blocks(value: Any) -> list[Block]:
    return blocks_of(orjson.dumps(value))


def chat_call(arguments: str, ident: str = "c1") -> dict[str, Any]:
    function = {"name": "read", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": ident, "function": function}]}


def test_a_string_is_one_text_block() -> None:
    listed = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "x"}}]}
    assert blocks({"role": "user", "content": "hi"}) == blocks(listed) == [Block("user", Kind.TEXT, "", "hi")]


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_no_content_is_no_block(content: dict[str, Any]) -> None:
    assert blocks({"role": "assistant", **content}) == []


def test_arguments_are_what_they_say_however_they_are_spelled() -> None:
    assert blocks(chat_call('{"b": 1, "a": "x"}')) == blocks(chat_call('{"a":"x","b":1}'))
    assert blocks(chat_call('{"a":"x"}')) != blocks(chat_call('{"a":"y"}'))


def test_arguments_that_are_no_json_are_kept_as_text() -> None:
    (block,) = blocks(chat_call('{"a": "cut o'))
    assert block.text == 'read\n{"a": "cut o'
    assert arguments_of(block) == ['{"a": "cut o']


def test_a_tool_call_is_the_same_on_every_wire() -> None:
    anthropic = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {"a": 1}}],
    }
    item = {"type": "function_call", "id": "fc_9", "call_id": "c1", "name": "read", "arguments": '{"a":1}'}
    assert blocks(chat_call('{"a": 1}')) == blocks(anthropic) == blocks(item)


def test_a_tool_result_is_the_same_on_every_wire() -> None:
    text = [{"type": "text", "text": "done"}]
    anthropic = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": text}]}
    item = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    chat = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    assert blocks(chat) == blocks(anthropic) == blocks(item) == [Block("tool", Kind.RESULT, "c1", "done")]


def test_reasoning_is_a_block_of_its_own_on_every_wire() -> None:
    chat = {"role": "assistant", "content": "ok", "reasoning_content": "hm"}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    anthropic = {"role": "assistant", "content": [thinking, {"type": "text", "text": "ok"}]}
    assert blocks(chat) == blocks(anthropic)
    summary = [{"type": "summary_text", "text": "hm"}]
    assert blocks({"type": "reasoning", "id": "rs_1", "summary": summary}) == blocks(chat)[:1]


def test_claude_codes_billing_line_is_dropped() -> None:
    assert blocks({"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"}) == []


def test_an_image_is_kept_without_its_cache_marker() -> None:
    image = {"type": "image", "source": {"data": "AA"}}
    marked = {**image, "cache_control": {"type": "ephemeral"}}
    assert blocks({"role": "user", "content": [image]}) == blocks({"role": "user", "content": [marked]})
    assert blocks({"role": "user", "content": [image]})[0].kind is Kind.OTHER


def test_strings_are_found_anywhere_in_arguments() -> None:
    (block,) = blocks(chat_call('{"input": "a", "more": [{"x": "b"}, 3]}'))
    assert sorted(arguments_of(block)) == ["a", "b"]


@pytest.mark.parametrize("body", [b"", b"not json", b"[", b"null", b"3", b"{}", b'[{"role": 3}]', b'"text"'])
def test_whatever_a_body_is_it_gives_blocks(body: bytes) -> None:
    assert all(isinstance(block, Block) for block in [*blocks_of(body), *response_blocks(body)])


def test_an_answer_that_is_text_is_the_assistants() -> None:
    assert (
        response_blocks(b'"hello"')
        == response_blocks(b"hello")
        == [Block("assistant", Kind.TEXT, "", "hello")]
    )
    assert response_blocks(None) == []


ODD_CALLS = [
    7,
    {"id": "c1"},
    "text",
    [1, None, "x", {"id": 4}, {"function": "read"}, {"function": {"name": None}}],
]


@pytest.mark.parametrize("calls", ODD_CALLS)
def test_tool_calls_that_are_none_are_no_error(calls: Any) -> None:
    """Other messages of the execution are as good as ever."""
    found = blocks(
        [{"role": "assistant", "content": "hi", "tool_calls": calls}, {"role": "user", "content": "on"}]
    )
    assert (found[0].text, found[-1].text) == ("hi", "on")
    assert {block.kind for block in found[1:-1]} <= {Kind.OTHER, Kind.CALL}


@pytest.mark.parametrize("depth", [100, 253, 300, 1000, 1024, 5000])
@pytest.mark.parametrize("frame", [b"%s", b'{"role":"user","content":%s}', b'{"type":"image","source":%s}'])
def test_any_depth_can_be_told(frame: bytes, depth: int) -> None:
    body = frame % (b"[" * depth + b'"x"' + b"]" * depth)
    assert "x" in "".join(block.text for block in blocks_of(body))
    assert "x" in "".join(block.text for block in response_blocks(body))
