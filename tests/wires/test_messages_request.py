"""Fields of a Messages request as those of chat/completions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gyre.proxy.calls import Wire
from gyre.proxy.errors import RequestError
from gyre.proxy.wires import known
from gyre.proxy.wires.messages.translate import translate
from gyre.proxy.wires.translation import Dialect, Json, Translation
from tests.wires.messages_builders import BASH, assistant, body, call, result, system, text, translated, user

HI = user("hi")
FUNCTION = {"name": "Bash", "description": BASH["description"], "parameters": BASH["input_schema"]}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def test_sampling_fields_keep_their_names_and_stop_sequences_become_stop() -> None:
    said = translated(HI, temperature=0.5, top_p=0.9, top_k=20, stop_sequences=["END"], seed=3)
    assert said.chat == {
        "model": "m",
        "messages": [HI],
        "max_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "seed": 3,
        "stop": ["END"],
    }
    assert said.lost == []


def test_what_is_null_is_not_said() -> None:
    said = translated(HI, temperature=None, tools=None, tool_choice=None, system=None, thinking=None)
    assert said.chat.keys() == {"model", "messages", "max_tokens"}


def test_a_stream_brings_its_usage() -> None:
    chat = translated(HI, stream=True).chat
    assert (chat["stream"], chat["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in translated(HI, stream=False).chat


def test_the_same_request_counts_tokens() -> None:
    said: Translation = translate({"model": "m", "messages": [HI], "tools": [BASH]}, Dialect("c1"))
    assert said.chat.keys() == {"model", "messages", "tools"}


def test_tools_are_functions() -> None:
    tool = {**BASH, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}
    bare = {"name": "Now", "input_schema": {"properties": {}}, "input_examples": [{}]}
    said = translated(HI, tools=[tool, bare])
    assert said.chat["tools"] == [
        {"type": "function", "function": {**FUNCTION, "strict": True}},
        {"type": "function", "function": {"name": "Now", "parameters": {"properties": {}, "type": "object"}}},
    ]
    assert said.lost == ["tool_field_left_out:input_examples"]
    assert "type" not in bare["input_schema"]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"type": "tool", "name": "Bash", "disable_parallel_tool_use": False},
            {"tool_choice": {"type": "function", "function": {"name": "Bash"}}},
        ),
    ],
)
def test_a_choice_of_tools(choice: Json, fields: Json) -> None:
    chat = translated(HI, tools=[BASH], tool_choice=choice).chat
    assert {key: chat[key] for key in chat if key in ("tool_choice", "parallel_tool_calls")} == fields


def test_tools_of_the_server_are_left_out_and_said_so() -> None:
    said = translated(HI, tools=[BASH, SEARCH], tool_choice={"type": "any"})
    assert [tool["function"]["name"] for tool in said.chat["tools"]] == ["Bash"]
    assert said.lost == ["tool_left_out:web_search_20250305"]


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([BASH, SEARCH], {"type": "tool", "name": "web_search"}),
        ([SEARCH], {"type": "any"}),
        ([], {"type": "any"}),
        ([BASH], {"type": "tool"}),
        ([BASH], {"type": "maybe"}),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(tools: list[Json], choice: Json) -> None:
    with pytest.raises(RequestError, match="`tool_choice") as caught:
        translated(HI, tools=tools, tool_choice=choice)
    assert caught.value.status == 400


def test_a_choice_among_no_tools_says_nothing() -> None:
    assert translated(HI, tools=[], tool_choice={"type": "auto"}).chat.keys() == {
        "model",
        "messages",
        "max_tokens",
    }


@pytest.mark.parametrize(
    ("fields", "said", "lost"),
    [
        ({}, {}, []),
        ({"thinking": {"type": "adaptive"}}, {}, []),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"chat_template_kwargs": {"enable_thinking": True}},
            ["thinking_budget_left_out"],
        ),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}, []),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            [],
        ),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}, []),
        (
            {
                "thinking": {"type": "disabled"},
                "chat_template_kwargs": {"enable_thinking": True, "custom": 1},
            },
            {"chat_template_kwargs": {"enable_thinking": True, "custom": 1}},
            [],
        ),
        ({"thinking": {"type": "between_tools"}}, {}, ["thinking_left_out:between_tools"]),
    ],
)
def test_thinking_is_what_templates_of_open_models_understand(
    fields: Json, said: Json, lost: list[str]
) -> None:
    translation = translated(HI, **fields)
    keys = translation.chat.keys() - {"model", "messages", "max_tokens"}
    assert {key: translation.chat[key] for key in keys} == said
    assert translation.lost == lost


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_a_format_of_the_output(field: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    fields: Json = {field: {"format": form} if field == "output_config" else form}
    chat = translated(HI, **fields).chat
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "json_schema", "schema": {"type": "object"}},
    }


def test_what_is_about_the_transport_is_dropped_and_the_rest_is_flagged() -> None:
    keep_all = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    said = translated(
        HI,
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management=keep_all,
        mcp_servers=[],
        output_config={"task_budget": {}},
    )
    assert said.chat.keys() == {"model", "messages", "max_tokens"}
    assert said.lost == ["field_left_out:mcp_servers", "field_left_out:output_config.task_budget"]


def test_edits_that_the_server_should_make_are_flagged() -> None:
    edits = [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015", "keep": {"value": 1}}]
    assert translated(HI, context_management={"edits": edits}).lost == [
        "context_edit_left_out:clear_tool_uses_20250919",
        "context_edit_left_out:clear_thinking_20251015",
    ]


def test_fields_of_a_message_that_are_not_carried_are_flagged() -> None:
    assert translated(HI, {**system("x"), "clear_at": "next_user_message"}, HI).lost == [
        "message_field_left_out:clear_at"
    ]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"model": 3}, "model"),
        ({"system": 3}, "system"),
        ({"tools": "Bash"}, "tools"),
        ({"tools": ["Bash"]}, "tools[0]"),
        ({"tools": [{"name": "Bash"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{**BASH, "description": 3}]}, "tools[0].description"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"thinking": "on"}, "thinking"),
        ({"output_config": 3}, "output_config"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"context_management": {"edits": 3}}, "context_management.edits"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
def test_malformed_fields_are_refused_by_name(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError) as caught:
        translate({**body(HI), **fields}, Dialect("c1"))
    assert caught.value.message.startswith(f"`{place}` ")


ASKED = assistant(call("1"))


def folded(*messages: Json, **fields: Any) -> list[tuple[str, Any]]:
    said = known.translate(Wire.MESSAGES, body(*messages, **fields), Dialect("c1", fold_system=True))
    return [(message["role"], message["content"]) for message in said.chat["messages"]]


def test_system_messages_fold_onto_what_is_before_them() -> None:
    assert folded(user("a"), system("n1"), system("n2"), system="S") == [
        ("system", "S"),
        ("user", "a\n\nn1\n\nn2"),
    ]
    assert folded(ASKED, user(result("1", "x")), system("n")) == [("assistant", None), ("tool", "x\n\nn")]
    assert folded(user(text("a"), text("b")), system("n")) == [("user", [text("a"), text("b"), text("n")])]
    assert folded(system("n"), user("a"), system="S") == [("system", "S\n\nn"), ("user", "a")]


def test_after_an_answer_they_open_the_next_message_or_are_one() -> None:
    answer = assistant("b")
    assert folded(answer, system("n"), user("c")) == [("assistant", "b"), ("user", "n\n\nc")]
    assert folded(answer, system("n")) == [("assistant", "b"), ("user", "n")]
    assert folded(answer, system("n"), answer) == [("assistant", "b"), ("user", "n"), ("assistant", "b")]


def test_folding_parts_no_call_from_its_result() -> None:
    assert folded(ASKED, system("n"), user(result("1", "x"), text("c"))) == [
        ("assistant", None),
        ("tool", "x\n\nn"),
        ("user", "c"),
    ]


def test_a_folded_prompt_still_extends_the_one_before() -> None:
    turns = [user("a"), system("n1"), ASKED, user(result("1", "x")), system("n2"), assistant("b"), user("c")]
    prompts = [folded(*turns[:end], system="S") for end in (2, 5, 7)]
    for shorter, longer in pairwise(prompts):
        assert longer[: len(shorter)] == shorter


def test_folding_is_flagged_and_only_where_it_happened() -> None:
    assert known.translate(Wire.MESSAGES, body(HI, system("n")), Dialect("c1", fold_system=True)).lost == [
        "system_folded"
    ]
    assert known.translate(Wire.MESSAGES, body(HI, system="S"), Dialect("c1", fold_system=True)).lost == []
