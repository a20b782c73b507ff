"""Histories of Messages as chat messages: the shapes that harnesses send, and any other."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given

from gyre.proxy.canonical import blocks_of, response_blocks
from gyre.proxy.errors import RequestError
from gyre.proxy.wires.messages.translate import translate
from gyre.proxy.wires.translation import Dialect, Ending, Json
from tests.wires.messages_builders import (
    IMAGE,
    IMAGE_PART,
    PATIENT,
    assistant,
    body,
    call,
    canonical,
    chat_answers,
    chat_call,
    chat_of,
    conversations,
    result,
    system,
    text,
    thinking,
    translated,
    user,
    written,
)

GO = user("go on")


def test_one_text_is_a_string_and_several_stay_a_list() -> None:
    assert chat_of(user("hi")) == chat_of(user(text("hi"))) == [{"role": "user", "content": "hi"}]
    assert chat_of(user(text("a"), text("b"))) == [{"role": "user", "content": [text("a"), text("b")]}]


def test_a_moving_cache_mark_changes_nothing() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = [user(text("a")), assistant(text("b")), user(result("1", "x"), text("c", **mark))]
    bare = [user("a"), assistant("b"), user(result("1", "x", **mark), text("c"))]
    assert chat_of(*marked) == chat_of(*bare)


def test_a_system_message_inside_stays_at_its_place_in_both_spellings() -> None:
    listed = chat_of(user("a"), system(text("note")), assistant("b"), GO, system="S")
    assert listed == chat_of(user("a"), system("note"), assistant("b"), GO, system=[text("S")])
    assert [message["role"] for message in listed] == ["system", "user", "system", "assistant", "user"]


@pytest.mark.parametrize("line", ["x-anthropic-billing-header: cc_version=2.1.220.abc; cch=00000;"])
def test_the_billing_line_never_reaches_the_engine(line: str) -> None:
    blocks = [text(line), text("You are an agent.", cache_control={"type": "ephemeral"}), text("More.")]
    assert chat_of(GO, system=blocks)[0] == {"role": "system", "content": "You are an agent.More."}
    assert chat_of(GO, system=f"{line}\nYou are an agent.")[0]["content"] == "You are an agent."
    assert chat_of(GO, system=[text(line)]) == chat_of(GO, system=line) == chat_of(GO)


def test_parallel_results_become_tool_messages_before_the_text() -> None:
    asked = assistant(text("both"), call("1", command="ls"), call("2", command="pwd"))
    chat = chat_of(user("a"), asked, user(result("1", "x"), result("2", [text("y")]), text("and now?")))
    assert chat[1]["tool_calls"] == [
        chat_call("1", '{"command": "ls"}'),
        chat_call("2", '{"command": "pwd"}'),
    ]
    assert chat[2:] == [
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
        {"role": "user", "content": "and now?"},
    ]


def test_text_before_a_result_stays_before_it() -> None:
    roles = [message["role"] for message in chat_of(user(text("a"), result("1", "x"), text("b")))]
    assert roles == ["user", "tool", "user"]


def test_texts_of_one_result_are_lines_and_its_images_follow() -> None:
    said = [text("one"), IMAGE, text("two")]
    chat = chat_of(user(result("1", said), result("2"), text("look")))
    assert chat == [
        {"role": "tool", "tool_call_id": "1", "content": "one\ntwo"},
        {"role": "user", "content": [IMAGE_PART]},
        {"role": "tool", "tool_call_id": "2", "content": ""},
        {"role": "user", "content": "look"},
    ]


def test_a_failed_result_keeps_its_text_and_never_reads_as_success() -> None:
    said = translated(user(result("1", "Exit code 1", is_error=True), result("2", is_error=True)))
    assert [message["content"] for message in said.chat["messages"]] == ["Exit code 1", "Error"]
    assert said.lost == ["is_error_left_out"]
    assert translated(user(result("1", "fine", is_error=False))).lost == []


def test_texts_and_images_keep_their_order() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    (message,) = chat_of(user(text("a"), IMAGE, text("b"), by_url))
    assert message["content"] == [
        text("a"),
        IMAGE_PART,
        text("b"),
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


def test_thinking_stays_with_the_message_it_led_to() -> None:
    said = assistant(thinking("so "), thinking("be it"), text("ok"), call("1"))
    (message,) = chat_of(said, user(result("1", "x")))[:1]
    assert message["reasoning_content"] == "so be it"
    assert (message["content"], len(message["tool_calls"])) == ("ok", 1)
    vllm = translated(said, user(result("1", "x")), dialect=Dialect("c1", reasoning="reasoning"))
    assert vllm.chat["messages"][0]["reasoning"] == "so be it"


def test_thinking_after_text_begins_a_message_of_its_own() -> None:
    chat = chat_of(assistant(thinking("a"), text("b"), thinking("c"), call("1")), user(result("1", "x")))
    assert [(m.get("reasoning_content"), m["content"]) for m in chat[:2]] == [("a", "b"), ("c", None)]


@pytest.mark.parametrize(("late", "flags"), [("\n", []), ("more", ["block_order_changed"])])
def test_nothing_comes_between_a_call_and_its_result(late: str, flags: list[str]) -> None:
    said = translated(assistant(text("b"), call("1"), text(late)), user(result("1", "x")))
    assert [message["role"] for message in said.chat["messages"]] == ["assistant", "tool"]
    assert said.chat["messages"][0]["content"] == f"b{late}"
    assert said.lost == flags


def test_redacted_thinking_is_left_out_and_said_so() -> None:
    redacted = {"type": "redacted_thinking", "data": "zzz"}
    for hidden in (redacted, thinking("")):
        said = translated(assistant(hidden, text("b")), GO)
        assert said.chat["messages"][0] == {"role": "assistant", "content": "b"}
        assert said.lost == ["redacted_thinking_left_out"]


@pytest.mark.parametrize(
    ("sampled", "taken"),
    [
        ('{"n":1.0,"s":"é","t":true}', True),
        ('{ "t": true, "s": "\\u00e9", "n": 1 }', True),
        ('{"n": 1, "s": "é", "t": 1}', False),
        ('{"n": 1, "s": "é"}', False),
        ('{"n": 1, "s": "é", "t": tru', False),
        (None, False),
    ],
)
def test_arguments_are_the_sampled_text_where_it_means_the_same(sampled: str | None, taken: bool) -> None:
    dialect = Dialect("c1", sampled=lambda ident: (sampled,) if sampled and ident == "1" else ())
    said = translated(assistant(call("1", n=1, s="é", t=True)), user(result("1", "x")), dialect=dialect)
    arguments = said.chat["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert arguments == (sampled if taken else '{"n": 1, "s": "é", "t": true}')


def test_documents_and_search_results_are_text_and_a_pdf_is_a_file() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "data": "body"}}
    parts = {"type": "document", "source": {"type": "content", "content": [text("a"), IMAGE]}}
    found = {"type": "search_result", "title": "T", "source": "u", "content": [text("b")]}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    (message,) = chat_of(user(plain, parts, found, pdf))
    assert message["content"] == [
        text("T\n\nbody"),
        text("a"),
        IMAGE_PART,
        text("T\nu\n\nb"),
        {
            "type": "file",
            "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        },
    ]


@pytest.mark.parametrize("kind", ["server_tool_use", "web_search_tool_result", "mcp_tool_use"])
def test_blocks_of_tools_that_no_engine_has_are_json_text_with_a_flag(kind: str) -> None:
    block = {"type": kind, "id": "1", "name": "web_search", "input": {"query": "x"}}
    said = translated(assistant(text("a"), block), GO)
    assert json.loads(said.chat["messages"][0]["content"][1]["text"]) == block
    assert said.lost == [f"block_as_text:{kind}"]


def test_a_referenced_tool_is_named_to_the_model() -> None:
    said = translated(user(result("1", [{"type": "tool_reference", "tool_name": "Grep"}])))
    assert said.chat["messages"][0]["content"] == "Grep"
    assert said.lost == ["block_as_text:tool_reference"]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([user("a"), {"role": "robot", "content": "b"}], "messages[1].role"),
        ([user("a"), "b"], "messages[1]"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(text("a"), {"type": "hologram"})], "messages[0].content[1]"),
        ([user(text("a"), "b")], "messages[0].content[1]"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user({"text": "a"})], "messages[0].content[0].type"),
        ([user(result("1", [{"type": "video"}]))], "messages[0].content[0].content[0]"),
        ([user({"type": "tool_result", "content": "x"})], "messages[0].content[0].tool_use_id"),
        (
            [user({"type": "image", "source": {"type": "file", "file_id": "f"}})],
            "messages[0].content[0].source",
        ),
        ([assistant(text("a"), IMAGE)], "messages[0].content[1]"),
        ([assistant({**call("1"), "input": "{}"})], "messages[0].content[0].input"),
        ([assistant({"type": "tool_use", "id": "1", "input": {}})], "messages[0].content[0].name"),
        ([system(IMAGE)], "messages[0].content[0]"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_its_place(messages: list[Json], place: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_of(*messages)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    assert caught.value.message.startswith(f"`{place}` ")


@pytest.mark.parametrize("messages", [None, {}, "a", []])
def test_without_messages_there_is_nothing_to_carry(messages: object) -> None:
    with pytest.raises(RequestError, match="`messages` must"):
        translate({"model": "m", "messages": messages}, Dialect("c1"))


def test_arguments_nested_beyond_reason_are_refused() -> None:
    deep: Json = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(RequestError, match="too deeply"):
        chat_of(assistant({**call("1"), "input": deep}), user(result("1", "x")))


def test_a_last_assistant_message_is_gone_on_with() -> None:
    chat = translated(user("a"), assistant("The answer is")).chat
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    assert chat["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert "continue_final_message" not in translated(user("a"), assistant("b"), GO).chat


def test_an_empty_beginning_is_none() -> None:
    chat = translated(user("a"), assistant(text(""))).chat
    assert chat["messages"] == [{"role": "user", "content": "a"}]
    assert "continue_final_message" not in chat


@pytest.mark.parametrize("block", [call("1"), thinking("hm")])
def test_what_cannot_be_gone_on_with_is_refused(block: Json) -> None:
    with pytest.raises(RequestError, match=r"`messages\[1\]` ends with"):
        chat_of(user("a"), assistant(block))


@PATIENT
@given(conversations())
def test_any_conversation_means_the_same_as_chat(said: Json) -> None:
    before = orjson.dumps(said)
    chat = translate(said, Dialect("c1"))
    assert canonical(chat.chat["messages"]) == canonical(said["messages"], said.get("system"))
    assert (chat.lost, orjson.dumps(said)) == ([], before)


@PATIENT
@given(chat_answers())
def test_an_answer_sent_back_is_the_message_that_the_engine_gave(message: Json) -> None:
    """With the sampled arguments remembered, so that the next prompt can hold the very same tokens."""
    spelling = {part["id"]: part["function"]["arguments"] for part in message.get("tool_calls", [])}
    _, answer = written([message], Ending("stop"))
    back = body(user("a"), {"role": "assistant", "content": answer["content"]}, GO)
    (chat,) = translate(back, Dialect("c1", sampled=lambda ident: (spelling[ident],))).chat["messages"][1:-1]
    assert response_blocks(orjson.dumps(chat)) == response_blocks(orjson.dumps(message))
    assert (chat["content"] or "") == (message["content"] or "")
    assert [part["function"]["arguments"] for part in chat.get("tool_calls", [])] == [*spelling.values()]
    assert blocks_of(orjson.dumps(back["messages"][1])) == response_blocks(orjson.dumps(message))
