"""Messages of three wires in one canonical form."""

from __future__ import annotations

import json
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


def test_arguments_in_brackets_without_end_are_kept_as_text() -> None:
    block = Block("assistant", Kind.CALL, "c1", "read\n" + 1000 * "[" + 1000 * "]")
    assert arguments_of(block) == [1000 * "[" + 1000 * "]"]


def test_no_arguments_are_none_in_either_spelling() -> None:
    assert blocks(chat_call("")) == blocks(chat_call("{ }")) != blocks(chat_call("null"))


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


@pytest.mark.parametrize("kind", ["custom_tool_call_output", "local_shell_call_output"])
def test_results_of_other_tools_are_results(kind: str) -> None:
    listed = [{"type": "input_text", "text": "do"}, {"type": "input_text", "text": "ne"}]
    result = [Block("tool", Kind.RESULT, "c1", "done")]
    assert blocks({"type": kind, "call_id": "c1", "output": "done"}) == result
    assert blocks({"type": kind, "id": "c1", "output": listed}) == result


def test_a_result_that_is_made_of_no_parts_is_its_json() -> None:
    item = {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "x", "outcome": None}]}
    assert blocks(item)[0].text == '[{"outcome":null,"stdout":"x"}]'


def test_a_custom_tools_call_is_a_function_of_one_text() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "read", "input": "x\ny"}
    assert blocks(item) == blocks(chat_call('{"input": "x\\ny"}'))


def test_a_name_in_a_namespace_is_the_name_in_chat() -> None:
    item = {
        "type": "function_call",
        "call_id": "c1",
        "name": "spawn",
        "namespace": "agents",
        "arguments": "{}",
    }
    (block,) = blocks(item)
    assert block.text == "agents__spawn\n{}"


def test_a_search_for_tools_is_a_call_with_a_result() -> None:
    call = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "x"}}
    found = {"type": "tool_search_output", "call_id": "c1", "tools": [{"name": "b", "defer_loading": True}]}
    assert blocks([call, found]) == [
        Block("assistant", Kind.CALL, "c1", 'tool_search\n{"query":"x"}'),
        Block("tool", Kind.RESULT, "c1", '[{"defer_loading":true,"name":"b"}]'),
    ]


def test_calls_of_built_in_tools_are_calls() -> None:
    item = {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}}
    assert blocks(item)[0] == Block(
        "assistant", Kind.CALL, "c1", 'local_shell\n{"command":["ls"],"type":"exec"}'
    )


def test_what_hosted_tools_did_is_kept_without_its_id() -> None:
    item = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
    assert blocks(item) == blocks({**item, "id": "ws_2"}) != blocks({**item, "action": None})
    assert blocks(item)[0].kind is Kind.OTHER


def test_a_message_between_agents_is_what_a_user_says() -> None:
    secret = {"type": "encrypted_content", "encrypted_content": "find it"}
    item = {
        "type": "agent_message",
        "author": "/root",
        "content": [{"type": "input_text", "text": "Task:"}, secret],
    }
    assert blocks(item) == [Block("user", Kind.TEXT, "", "Task:"), Block("user", Kind.TEXT, "", "find it")]


def test_reasoning_is_said_once_however_often_an_item_says_it() -> None:
    """Some clients throw `content` away; what we sealed for them is the same text."""
    text = [{"type": "reasoning_text", "text": "hm"}]
    item = {"type": "reasoning", "summary": [], "content": text, "encrypted_content": "gyre1.aG0="}
    assert blocks(item) == [Block("assistant", Kind.REASONING, "", "hm")]
    assert blocks({**item, "content": None}) == blocks({**item, "encrypted_content": "gAAAA"}) == blocks(item)


def test_an_answer_of_responses_is_its_output() -> None:
    items = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "ok"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
    ]
    answer = response_blocks(orjson.dumps({"output": items}))
    assert answer == response_blocks(orjson.dumps(items)) == blocks(items)
    assert [block.kind for block in answer] == [Kind.TEXT, Kind.CALL]


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


def called_with(arguments: Any) -> str:
    body = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
    }
    (block,) = blocks_of(json.dumps(body).encode())
    return block.text


def test_numbers_are_the_same_however_a_harness_writes_them() -> None:
    assert called_with('{"a": 1.0, "b": 12345678901234567890}') == called_with(
        '{"b":12345678901234567000,"a":1}'
    )
    assert called_with('{"a": 1}') != called_with('{"a": true}')
    assert called_with('{"a": 1e300}') == called_with('{"a": 1E+300}')


def test_blank_text_and_reasoning_say_nothing() -> None:
    calls = [{"id": "c1", "function": {"name": "read", "arguments": "{}"}}]
    engine = {"role": "assistant", "content": "\n\n", "reasoning": "", "tool_calls": calls}
    use = {"type": "tool_use", "id": "c1", "name": "read", "input": {}}
    thinking = {"type": "thinking", "thinking": "", "signature": "s"}
    assert blocks(engine) == blocks({"role": "assistant", "content": [thinking, use]})
    assert len(blocks(engine)) == 1
