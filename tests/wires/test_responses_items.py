"""Items of a request as chat's messages: one answer is one message, and what cannot be carried is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gyre.proxy.errors import RequestError
from gyre.proxy.wires.responses.sealed import sealed
from tests.wires.responses_builders import (
    AGENTS,
    FIND,
    PATCH,
    SPAWN,
    Json,
    called,
    chat_call,
    message,
    messages,
    output,
    patched,
    said,
    thought,
    translated,
    user,
)


def assistant(content: str | None, *calls: Json, **more: Any) -> Json:
    found: Json = {"role": "assistant", **more, "content": content}
    return found | ({"tool_calls": list(calls)} if calls else {})


LS = chat_call("c1", "exec_command", '{"cmd": "ls"}')
PWD = chat_call("c2", "exec_command", '{"cmd": "pwd"}')


def test_codex_first_call_is_one_system_message_and_what_the_user_said() -> None:
    base = message("developer", "You are Codex.")
    context: Json = {"type": "message", "role": "developer", "content": []}
    context["content"] = [{"type": "input_text", "text": "skills"}, {"type": "input_text", "text": "sandbox"}]
    assert messages(base, context, user("<environment_context>"), user("fix it")) == [
        {"role": "system", "content": "You are Codex.\n\nskills\nsandbox"},
        {"role": "user", "content": "<environment_context>"},
        {"role": "user", "content": "fix it"},
    ]


def test_instructions_come_before_everything() -> None:
    assert messages(message("developer", "more"), user("hi"), instructions="Be short.") == [
        {"role": "system", "content": "Be short.\n\nmore"},
        {"role": "user", "content": "hi"},
    ]


def test_instructions_in_mid_history_keep_their_place() -> None:
    found = messages(user("hi"), said("ho"), message("developer", "from now on"), user("on"))
    assert [message["role"] for message in found] == ["user", "assistant", "system", "user"]


def test_a_string_is_what_the_user_says() -> None:
    short = {"role": "user", "content": "hi"}
    assert messages(short) == translated(input="hi").chat["messages"] == [short]


def test_what_one_answer_was_is_one_message() -> None:
    answer = [thought("look"), said("I look."), called("c1"), called("c2", '{"cmd": "pwd"}')]
    assert messages(user("hi"), *answer, output("c1", "src"), output("c2", "/")) == [
        {"role": "user", "content": "hi"},
        assistant("I look.", LS, PWD, reasoning_content="look"),
        {"role": "tool", "tool_call_id": "c1", "content": "src"},
        {"role": "tool", "tool_call_id": "c2", "content": "/"},
    ]


def test_items_in_another_order_are_several_messages_in_that_order() -> None:
    assert messages(called("c1"), thought("hm"), said("so"), said("and so"), thought("hm hm")) == [
        assistant(None, LS),
        assistant("so", reasoning_content="hm"),
        assistant("and so"),
        assistant("", reasoning_content="hm hm"),
    ]


def test_items_of_two_answers_are_two_messages() -> None:
    """Codex keeps the message of an answer that was cut, and asks again."""
    cut, whole = said("I patch it.", "msg_aa_0"), called("c1", id="fc_bb_0")
    assert messages(cut, whole) == [assistant("I patch it."), assistant(None, LS)]
    assert messages(cut, called("c1", id="fc_aa_1")) == [assistant("I patch it.", LS)]
    assert messages(cut, called("c1", id="fc_1")) == [assistant("I patch it.", LS)]
    later = messages(thought("hm"), cut, whole)
    assert later == [assistant("I patch it.", reasoning_content="hm"), assistant(None, LS)]


def test_reasoning_goes_into_the_field_that_the_engine_reads() -> None:
    (found,) = messages(thought("hm"))
    assert found == assistant("", reasoning_content="hm")


def test_reasoning_is_its_text_or_what_we_sealed_or_a_summary() -> None:
    summary = [{"type": "summary_text", "text": "in short"}]
    item = thought("verbatim")
    item |= {"summary": summary, "encrypted_content": sealed("sealed ü")}
    assert messages(item)[0]["reasoning_content"] == "verbatim"
    assert messages({**item, "content": None})[0]["reasoning_content"] == "sealed ü"
    assert messages({**item, "content": [], "encrypted_content": None})[0]["reasoning_content"] == "in short"


def test_reasoning_that_only_another_server_can_read_is_flagged() -> None:
    foreign = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAxyz"}
    found = translated(foreign, user("hi"))
    assert found.chat["messages"] == [{"role": "user", "content": "hi"}]
    assert found.lost == ["reasoning_unreadable"]


def test_arguments_are_those_that_were_sampled_where_they_say_the_same() -> None:
    sampled = {"c1": '{ "cmd":"ls"}', "c2": '{"cmd": "pwd"}', "c3": '{"input":"a\\u00e9"}'}
    items = [called("c1"), called("c2", '{"cmd": "cd"}'), patched("c3", "aé")]
    (found,) = messages(*items, sampled=sampled)
    arguments = [call["function"]["arguments"] for call in found["tool_calls"]]
    assert arguments == ['{ "cmd":"ls"}', '{"cmd": "cd"}', '{"input":"a\\u00e9"}']


def test_calls_of_tools_in_a_namespace_have_one_name_with_and_without_tools() -> None:
    """A compaction sends no tools, and must render the same history."""
    call = called("c1", "{}", "spawn_agent", namespace="agents")
    expected = [assistant(None, chat_call("c1", "agents__spawn_agent", "{}"))]
    assert messages(call, tools=[AGENTS]) == messages(call, tools=[]) == messages(call) == expected


def test_a_custom_tools_call_is_a_function_of_one_text() -> None:
    found = messages(
        patched("c1", 'a "b"\n'), output("c1", "Success", "custom_tool_call_output"), tools=[PATCH]
    )
    assert found == [
        assistant(None, chat_call("c1", "apply_patch", '{"input": "a \\"b\\"\\n"}')),
        {"role": "tool", "tool_call_id": "c1", "content": "Success"},
    ]


def test_tools_that_a_search_found_can_be_called() -> None:
    search = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "x"}}
    found = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [AGENTS]}
    chat = translated(search, found, called("c2", "{}", "spawn_agent", namespace="agents"), tools=[FIND]).chat
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["tool_search", "agents__spawn_agent"]
    assert chat["messages"] == [
        assistant(None, chat_call("c1", "tool_search", '{"query": "x"}')),
        {"role": "tool", "tool_call_id": "c1", "content": '{"tools": ["agents__spawn_agent"]}'},
        assistant(None, chat_call("c2", "agents__spawn_agent", "{}")),
    ]


def test_tools_may_come_as_an_item() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [SPAWN]}
    chat = translated(item, user("hi")).chat
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["spawn_agent"]
    assert chat["messages"] == [{"role": "user", "content": "hi"}]


def test_a_message_between_agents_is_a_users() -> None:
    secret = {"type": "encrypted_content", "encrypted_content": "find it"}
    item: Json = {"type": "agent_message", "author": "/root", "recipient": "/root/kid"}
    item["content"] = [{"type": "input_text", "text": "Payload:\n"}, secret]
    assert messages(item) == [{"role": "user", "content": "Payload:\nfind it"}]
    foreign = translated(item | {"content": [*item["content"][:1], secret | {"encrypted_content": "gAAAAx"}]})
    assert (foreign.chat["messages"][0]["content"], foreign.lost) == (
        "Payload:\n",
        ["agent_message_unreadable"],
    )


@pytest.mark.parametrize(
    ("kind", "field", "name"),
    [
        ("local_shell_call", "action", "local_shell"),
        ("shell_call", "action", "shell"),
        ("apply_patch_call", "operation", "apply_patch"),
    ],
)
def test_calls_of_built_in_tools_are_calls(kind: str, field: str, name: str) -> None:
    call = {"type": kind, "call_id": "c1", field: {"type": "exec", "command": ["ls"]}}
    result = {"type": f"{kind}_output", "call_id": "c1", "output": "src"}
    first, second = messages(call, result)
    (function,) = [call["function"] for call in first["tool_calls"]]
    assert (function["name"], json.loads(function["arguments"])) == (name, call[field])
    assert second["tool_call_id"] == "c1"


def test_a_local_shells_output_may_have_its_id_elsewhere() -> None:
    item = {"type": "local_shell_call_output", "id": "c1", "output": "src"}
    assert messages(item) == [{"role": "tool", "tool_call_id": "c1", "content": "src"}]


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
CHAT_IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


def test_images_keep_their_place_among_texts() -> None:
    parts = [
        {"type": "input_text", "text": "see"},
        {**IMAGE, "detail": "low"},
        {"type": "input_text", "text": "!"},
    ]
    (found,) = messages({"type": "message", "role": "user", "content": parts})
    image = {"type": "image_url", "image_url": {**CHAT_IMAGE["image_url"], "detail": "low"}}
    assert found["content"] == [{"type": "text", "text": "see"}, image, {"type": "text", "text": "!"}]


def test_a_tools_result_may_be_an_image_or_texts() -> None:
    found = translated(
        output("c1", [{**IMAGE, "detail": "original"}]), output("c2", [user("a")["content"][0]])
    )
    assert [message["content"] for message in found.chat["messages"]] == [[CHAT_IMAGE], "a"]
    assert found.lost == ["image_detail_left_out:original"]


def test_a_file_goes_along_with_its_data() -> None:
    part = {"type": "input_file", "file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}
    (found,) = messages({"role": "user", "content": [part]})
    assert found["content"] == [
        {"type": "file", "file": {"file_data": part["file_data"], "filename": "a.pdf"}}
    ]


@pytest.mark.parametrize(
    "kind", ["web_search_call", "image_generation_call", "mcp_call", "computer_call_output"]
)
def test_what_hosted_tools_left_behind_is_left_out_and_flagged(kind: str) -> None:
    found = translated(user("hi"), {"type": kind, "id": "x", "status": "completed"})
    assert found.chat["messages"] == [{"role": "user", "content": "hi"}]
    assert found.lost == [f"item_left_out:{kind}"]


def test_a_phase_is_flagged() -> None:
    found = translated(said("so") | {"phase": "commentary"})
    assert found.lost == ["phase_left_out:commentary"]


def test_a_refusal_is_text() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(item) == [assistant("No.")]


@pytest.mark.parametrize(
    ("item", "said_of_it"),
    [
        ("hi", "`input[1]` must be an object"),
        ({"type": "banana"}, "`input[1]` is of type `banana`"),
        ({}, "`input[1]` is of type `None`"),
        ({"id": "msg_1"}, "`input[1]` refers to an item"),
        ({"type": "item_reference", "id": "msg_1"}, "`input[1]` refers to an item"),
        ({"type": "compaction", "encrypted_content": "x"}, "`input[1]` is a history that only its server"),
        ({"type": "compaction_trigger"}, "`input[1]` asks the server to compact"),
        ({"type": "message", "role": "critic", "content": "x"}, "`input[1].role` must be"),
        ({"type": "message", "role": "user"}, "`input[1].content` must be a string or a list"),
        ({"role": "user", "content": ["x"]}, "`input[1].content[0]` must be an object"),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            "`input[1].content[0].text` must be a string",
        ),
        ({"role": "user", "content": [{"type": "video"}]}, "`input[1].content[0]` is of type `video`"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "an image by `file_id`"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "`input[1].content[0].image_url` must be"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "a file without `file_data`"),
        ({"role": "assistant", "content": [IMAGE]}, "`input[1].content` has parts that are no text"),
        (called("c1") | {"call_id": None}, "`input[1].call_id` must be a string"),
        (called("") | {"id": "fc_1"}, "`input[1].call_id` must not be empty"),
        (called("c1", name=""), "`input[1].name` must not be empty"),
        (called("c1") | {"arguments": {"cmd": "ls"}}, "`input[1].arguments` must be a string"),
        (patched("c1", "x") | {"input": None}, "`input[1].input` must be a string"),
        (output("c1") | {"output": None}, "`input[1].output` must be a string or a list"),
        ({"type": "additional_tools"}, "`input[1].tools` must be a list"),
        ({"type": "agent_message", "content": "x"}, "`input[1].content` must be a list"),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(item: Any, said_of_it: str) -> None:
    with pytest.raises(RequestError) as problem:
        messages(user("hi"), item)
    assert (problem.value.status, said_of_it in problem.value.message) == (400, True), problem.value.message


@pytest.mark.parametrize("given", [None, 3, {}, [], [{"type": "web_search_call"}]])
def test_input_that_asks_nothing_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="`input`"):
        translated(input=given)
