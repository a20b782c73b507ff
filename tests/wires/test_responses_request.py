"""Fields and tools of a request: carried, left out with a flag, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.proxy.errors import RequestError
from tests.wires.responses_builders import AGENTS, EXEC, FIND, PATCH, SPAWN, WEB, Json, translated, user

CODEX: Json = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread",
    "client_metadata": {"x-codex-turn-metadata": "{}"},
}
HI = {"role": "user", "content": "hi"}


def chat(*tools: Json, **fields: Any) -> Json:
    if tools:
        fields["tools"] = list(tools)
    return translated(user("hi"), **fields).chat


def lost(*tools: Json, **fields: Any) -> list[str]:
    return translated(user("hi"), tools=list(tools), **fields).lost


def names(found: Json) -> list[str]:
    return [tool["function"]["name"] for tool in found["tools"]]


def refused(**fields: Any) -> str:
    with pytest.raises(RequestError) as problem:
        translated(user("hi"), **fields)
    assert problem.value.status == 400
    return problem.value.message


def test_codex_request_becomes_what_engines_know() -> None:
    found = translated(user("hi"), tools=[EXEC, AGENTS, WEB], **CODEX)
    assert names(found.chat) == ["exec_command", "agents__spawn_agent"]
    del found.chat["tools"]
    assert found.chat == {
        "model": "m",
        "messages": [HI],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert found.lost == ["tool_left_out:web_search"]


def test_codex_compaction_says_nothing_of_tools() -> None:
    """Engines refuse a choice without tools, and an empty list of them."""
    found = translated(user("sum up"), tools=[], **CODEX | {"parallel_tool_calls": False})
    assert found.chat.keys() == {"model", "messages", "stream", "stream_options"}
    assert found.lost == []


def test_what_both_wires_have_is_carried() -> None:
    same = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 7, "chat_template_kwargs": {"x": True}}
    found = chat(**same, max_output_tokens=100, reasoning={"effort": "low"})
    assert found == {
        "model": "m",
        "messages": [HI],
        **same,
        "max_tokens": 100,
        "reasoning_effort": "low",
        "stream": False,
    }
    assert lost(**same, max_output_tokens=100, reasoning={"effort": "low"}) == []


def test_null_is_absent() -> None:
    fields = ("temperature", "max_output_tokens", "text", "reasoning", "tools", "tool_choice", "include")
    more = ("previous_response_id", "conversation", "prompt", "stream", "instructions", "top_logprobs")
    assert chat(**dict.fromkeys(fields + more), background=False) == chat()


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"include": ["message.output_text.logprobs"]}, "logprobs_left_out"),
        ({"top_logprobs": 5}, "logprobs_left_out"),
        ({"truncation": "auto"}, "truncation_left_out"),
        ({"text": {"verbosity": "low"}}, "verbosity_left_out"),
        ({"reasoning": {"effort": "xhigh"}}, "reasoning_effort_left_out:xhigh"),
        ({"context_management": [{"type": "compaction"}]}, "field_left_out:context_management"),
        ({"banana": 1}, "field_left_out:banana"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tool_left_out:mcp"),
        ({"tools": [{"type": "local_shell"}]}, "tool_left_out:local_shell"),
        ({"tools": [{"type": "tool_search"}]}, "tool_left_out:tool_search"),
        ({"tools": [PATCH]}, "grammar_not_enforced:apply_patch"),
    ],
)
def test_what_no_engine_can_do_is_flagged_once(fields: Json, flag: str) -> None:
    found = translated(user("hi"), **fields)
    assert found.lost == [flag]
    assert found.chat.keys() <= {"model", "messages", "tools", "stream"}


@pytest.mark.parametrize("field", ["store", "metadata", "user", "service_tier", "safety_identifier"])
def test_what_only_concerns_the_transport_is_not_passed_on(field: str) -> None:
    asked: Json = {field: "x"}
    found = translated(user("hi"), **asked)
    assert (field in found.chat, found.lost) == (False, [])


@pytest.mark.parametrize(
    ("form", "response_format"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            },
        ),
    ],
)
def test_forms_of_text(form: Json, response_format: Json | None) -> None:
    assert chat(text={"format": form}).get("response_format") == response_format


@pytest.mark.parametrize(
    ("fields", "said_of_it"),
    [
        (
            {"previous_response_id": "resp_1"},
            "`previous_response_id` refers to a response, and the proxy keeps",
        ),
        ({"conversation": "conv_1"}, "`conversation` refers to a conversation, and the proxy keeps none"),
        ({"prompt": {"id": "pmpt_1"}}, "`prompt` refers to a prompt template, and the proxy keeps none"),
        ({"background": True}, "`background` asks for a response to be fetched later, and the proxy keeps"),
    ],
)
def test_what_needs_a_server_that_keeps_responses_is_refused(fields: Json, said_of_it: str) -> None:
    message = refused(**fields)
    assert message.startswith(said_of_it)
    assert message.endswith("send the whole input with every call (`store: false`)")


@pytest.mark.parametrize(
    ("fields", "said_of_it"),
    [
        ({"model": None}, "`model` must be a string"),
        ({"model": ""}, "`model` must not be empty"),
        ({"instructions": ["x"]}, "`instructions` must be a string"),
        ({"stream": "yes"}, "`stream` must be true or false"),
        ({"include": "x"}, "`include` must be a list"),
        ({"text": "x"}, "`text` must be an object"),
        ({"text": {"format": {"type": "xml"}}}, "`text.format.type` must be"),
        ({"text": {"format": {"type": "json_schema"}}}, "`text.format.schema` must be an object"),
        ({"reasoning": "high"}, "`reasoning` must be an object"),
        ({"tools": {}}, "`tools` must be a list"),
        ({"tools": ["x"]}, "`tools[0]` must be an object"),
        ({"tools": [{}]}, "`tools[0].type` must be a string"),
        ({"tools": [{"type": "function"}]}, "`tools[0].name` must be a string"),
        ({"tools": [EXEC | {"parameters": "x"}]}, "`tools[0].parameters` must be an object"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "`tools[0].tools` must be a list"),
        ({"tools": [AGENTS | {"tools": [SPAWN, 3]}]}, "`tools[0].tools[1]` must be an object"),
        ({"tool_choice": "maybe"}, "`tool_choice` must be"),
        ({"tool_choice": "required", "tools": [WEB]}, "`tool_choice` requires a tool"),
        ({"tool_choice": {"type": "web_search"}, "tools": [WEB]}, "a tool of type `web_search`, which no"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [EXEC]}, "names `x`, which is none of"),
        ({"tool_choice": {"type": "custom", "name": "exec_command"}, "tools": [EXEC]}, "which is none of"),
        ({"tool_choice": {}, "tools": [EXEC]}, "`tool_choice.type` must be a string"),
        ({"tool_choice": {"type": "allowed_tools"}}, "`tool_choice.tools` must be a list"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [], "mode": "x"}}, "`tool_choice.mode` must"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [3]}}, "`tool_choice.tools[0].type` must"),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(fields: Json, said_of_it: str) -> None:
    message = refused(**fields)
    assert said_of_it in message, message


def test_a_functions_definition_is_carried() -> None:
    strict = EXEC | {"strict": True, "description": "Run."}
    (found,) = chat(strict)["tools"]
    function = {
        "name": "exec_command",
        "description": "Run.",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert found == {"type": "function", "function": function}
    assert chat(EXEC | {"parameters": None})["tools"][0]["function"] == {
        "name": "exec_command",
        "parameters": {"type": "object", "properties": {}},
    }


def test_a_custom_tool_takes_one_text_whose_grammar_the_model_is_told() -> None:
    (found,) = chat(PATCH)["tools"]
    text = {"type": "string", "description": "Text in this lark grammar:\nstart: line+"}
    assert found["function"] == {
        "name": "apply_patch",
        "description": "Edit files.",
        "parameters": {
            "type": "object",
            "properties": {"input": text},
            "required": ["input"],
            "additionalProperties": False,
        },
    }


def test_what_a_namespace_says_is_said_once() -> None:
    both = AGENTS | {"tools": [SPAWN, SPAWN | {"name": "wait_agent", "description": "Wait."}]}
    said = [tool["function"]["description"] for tool in chat(both)["tools"]]
    assert said == ["Agents.\n\nStart one.", "Wait."]


def test_names_are_unique_and_mapped_back() -> None:
    plain = SPAWN | {"name": "agents__spawn_agent"}
    found = translated(user("hi"), tools=[AGENTS, plain, PATCH, PATCH | {"type": "function"}])
    assert names(found.chat) == [
        "agents__spawn_agent",
        "agents__spawn_agent_2",
        "apply_patch",
        "apply_patch_2",
    ]
    tools = [found.tools.tool_of(name) for name in names(found.chat)]
    assert [(tool.kind, tool.namespace, tool.name) for tool in tools] == [
        ("function", "agents", "spawn_agent"),
        ("function", None, "agents__spawn_agent"),
        ("custom", None, "apply_patch"),
        ("function", None, "apply_patch"),
    ]


def test_a_tool_said_twice_is_one_tool_as_said_last() -> None:
    (found,) = chat(EXEC, EXEC | {"description": "Newer."})["tools"]
    assert found["function"]["description"] == "Newer."


def test_one_tool_can_be_chosen() -> None:
    tools = [EXEC, AGENTS, PATCH, FIND]
    for choice, name in (
        ({"type": "function", "name": "exec_command"}, "exec_command"),
        ({"type": "function", "name": "spawn_agent"}, "agents__spawn_agent"),
        ({"type": "function", "name": "spawn_agent", "namespace": "agents"}, "agents__spawn_agent"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "tool_search"}, "tool_search"),
    ):
        assert chat(*tools, tool_choice=choice)["tool_choice"] == {
            "type": "function",
            "function": {"name": name},
        }


def test_a_name_in_two_namespaces_is_no_choice() -> None:
    other = AGENTS | {"name": "others"}
    choice = {"type": "function", "name": "spawn_agent"}
    assert "which is none of" in refused(tools=[AGENTS, other], tool_choice=choice)
    chosen = chat(AGENTS, other, tool_choice=choice | {"namespace": "others"})["tool_choice"]
    assert chosen["function"]["name"] == "others__spawn_agent"


def test_of_allowed_tools_the_model_sees_only_those() -> None:
    allowed = [{"type": "function", "name": "exec_command"}, {"type": "web_search"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    found = chat(AGENTS, EXEC, WEB, tool_choice=choice)
    assert (names(found), found["tool_choice"]) == (["exec_command"], "required")


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_mode_is_carried(choice: str) -> None:
    assert chat(EXEC, tool_choice=choice)["tool_choice"] == choice
