"""Responses requests: items as Codex and others send them."""

from __future__ import annotations

from typing import Any

from tests.vllm.cases import Json, responses, text
from tests.vllm.chat_cases import LOOK

FUNCTION: Json = {"type": "function", **LOOK}
QUESTION = "What is the capital of France?"
SCHEMA: Json = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def said(role: str, *parts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [text(part, kind) for part in parts]}


def thought(content: str) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text(content, "reasoning_text")]}


def call(ident: str, arguments: str, **fields: Any) -> Json:
    return {"type": "function_call", "call_id": ident, "name": "look", "arguments": arguments, **fields}


def output(ident: str, content: str | list[Json]) -> Json:
    return {"type": "function_call_output", "call_id": ident, "output": content}


def within(role: str) -> list[Json]:
    return [
        said("user", QUESTION),
        said("assistant", "Paris."),
        said(role, "Now slow."),
        said("user", "Well?"),
    ]


CALLS = [call("c1", '{"path": "a.txt", "Ä": [1.0, null]}'), call("c2", '{"path":"b.txt"}')]
OUTPUTS = [output("c1", "É"), output("c2", [text("one", "input_text"), text("two", "input_text")])]
TURN = [said("user", QUESTION), thought("Both."), said("assistant", "I look."), *CALLS, *OUTPUTS]
PATCH: Json = {"type": "custom", "name": "patch", "description": "Edits a file."}
PATCHED = [
    said("user", "Edit."),
    {"type": "custom_tool_call", "call_id": "p1", "name": "patch", "input": 'a "b"\n'},
    {"type": "custom_tool_call_output", "call_id": "p1", "output": "done"},
]
AS_FUNCTION: Json = {
    "type": "function",
    "name": "patch",
    "description": "Edits a file.",
    "parameters": {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    },
}

RESPONSES = [
    responses("plain", QUESTION),
    responses("stream", QUESTION, stream=True),
    responses("instructions", [said("user", "one", "two")], instructions="Be short.", stream=True),
    responses("developer", [said("developer", "Be short."), said("user", QUESTION)], instructions="Be nice."),
    responses(
        "developer within",
        within("developer"),
        "for a template without developers vLLM moves what they say to the start; the proxy keeps the place",
        {"input": within("system")},
    ),
    responses("calls and outputs", TURN, tools=[FUNCTION]),
    responses("streamed calls and outputs", [*TURN, said("user", "And now?")], tools=[FUNCTION], stream=True),
    responses(
        "forced call",
        "Look into a.txt",
        tools=[FUNCTION],
        tool_choice="required",
        max_output_tokens=60,
        stream=True,
    ),
    responses(
        "one named call",
        "Look into a.txt",
        tools=[{**FUNCTION, "strict": True}],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        max_output_tokens=60,
    ),
    responses(
        "a lax tool",
        QUESTION,
        "vLLM shows the model `strict: false`; the proxy leaves it out, as it says nothing",
        {"tools": [FUNCTION]},
        tools=[{**FUNCTION, "strict": False}],
    ),
    responses(
        "custom tool",
        PATCHED,
        "vLLM describes the one text of a custom tool in its own words",
        {
            "tools": [AS_FUNCTION],
            "input": [
                PATCHED[0],
                {**call("p1", '{"input": "a \\"b\\"\\n"}'), "name": "patch"},
                output("p1", "done"),
            ],
        },
        tools=[PATCH],
    ),
    responses("effort", QUESTION, reasoning={"effort": "low"}, stream=True),
    responses(
        "no effort",
        QUESTION,
        "`none` and `minimal` are not known to every engine, so the proxy leaves them out and says so",
        {"reasoning": None},
        ("reasoning_effort_left_out:minimal",),
        reasoning={"effort": "minimal"},
    ),
    responses(
        "two parts of an answer",
        [said("user", QUESTION), said("assistant", "Paris", " it is."), said("user", "Well?")],
        "vLLM takes the first part of what an assistant said and drops the others",
        {"input": [said("user", QUESTION), said("assistant", "Paris it is."), said("user", "Well?")]},
    ),
    responses(
        "a thought after text",
        [said("user", QUESTION), said("assistant", "I look."), thought("How?"), *CALLS, *OUTPUTS],
        "vLLM puts a thought before the text it came after; the proxy begins another message",
        tools=[FUNCTION],
    ),
    responses(
        "a schema",
        "All well?",
        text={"format": {"type": "json_schema", "name": "state", "schema": SCHEMA}},
        max_output_tokens=40,
    ),
]
