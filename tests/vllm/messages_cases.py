"""Messages requests: histories as Claude Code and others send them."""

from __future__ import annotations

from tests.vllm.cases import Json, assistant, messages, text, user
from tests.vllm.chat_cases import PARAMETERS

LOOK: Json = {"name": "look", "description": "Reads a file.", "input_schema": PARAMETERS}
NOW: Json = {"name": "now", "input_schema": {"properties": {}}}
SCHEMA: Json = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
QUESTION = user("What is the capital of France?")


def use(ident: str, path: str) -> Json:
    return {"type": "tool_use", "id": ident, "name": "look", "input": {"path": path, "Ä": [1.0, None]}}


def result(ident: str, content: str | list[Json], **fields: bool) -> Json:
    return {"type": "tool_result", "tool_use_id": ident, "content": content, **fields}


def thought(said: str) -> Json:
    return {"type": "thinking", "thinking": said, "signature": "s"}


BILLING = text("x-anthropic-billing-header: cc_version=1; cch=12345;")
CACHED = {**text("You are careful.\n"), "cache_control": {"type": "ephemeral"}}
SLOW = {"role": "system", "content": "Now slow."}
CALLS = assistant([thought("Both."), text("I look."), use("t1", "a.txt"), use("t2", "b.txt")])
RESULTS = [result("t1", [text("É"), text("two")]), result("t2", "gone", is_error=True)]
ONE, TWO = [thought("One."), text("1")], [thought("Two."), text("2")]
ERROR = ("is_error_left_out",)

MESSAGES = [
    messages("plain", [QUESTION]),
    messages("stream", [QUESTION], stream=True),
    messages("system text", [QUESTION], system="Answer in one word."),
    messages("system blocks", [QUESTION], system=[BILLING, CACHED, text("Answer in one word.")], stream=True),
    messages("system within", [QUESTION, assistant("Paris."), SLOW, QUESTION]),
    messages("several texts", [user([text("one"), text(""), text("two")]), assistant([text("3")]), QUESTION]),
    messages("calls and results", [QUESTION, CALLS, user(RESULTS)], flags=ERROR, tools=[LOOK]),
    messages(
        "text after results",
        [QUESTION, CALLS, user([*RESULTS, text("And now?")])],
        flags=ERROR,
        tools=[LOOK],
        stream=True,
    ),
    messages(
        "text before results",
        [QUESTION, CALLS, user([text("Here."), *RESULTS])],
        "vLLM puts all results before what the user says; the proxy keeps the order",
        flags=ERROR,
        tools=[LOOK],
    ),
    messages(
        "forced call",
        [user("Look into a.txt")],
        tools=[LOOK],
        tool_choice={"type": "any"},
        max_tokens=60,
        stream=True,
    ),
    messages(
        "one named call",
        [user("Look into a.txt")],
        tools=[{**LOOK, "strict": True}],
        tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        max_tokens=60,
    ),
    messages("no call", [QUESTION], tools=[LOOK], tool_choice={"type": "none"}),
    messages("a schema without a type", [QUESTION], tools=[NOW]),
    messages(
        "thinking",
        [QUESTION],
        "vLLM takes a budget alone, the proxy tells the template that thinking is on",
        {"thinking": None, "chat_template_kwargs": {"enable_thinking": True}},
        ("thinking_budget_left_out",),
        thinking={"type": "enabled", "budget_tokens": 1024},
        max_tokens=1030,
        stop_sequences=["e"],
    ),
    messages(
        "thinking off",
        [QUESTION],
        "vLLM makes of it the effort `none` too, which only some templates know",
        {"thinking": None, "chat_template_kwargs": {"enable_thinking": False}},
        thinking={"type": "disabled"},
    ),
    messages(
        "effort", [QUESTION], thinking={"type": "adaptive"}, output_config={"effort": "low"}, stream=True
    ),
    messages(
        "a thought between",
        [QUESTION, assistant([*ONE, *TWO]), user("And of Italy?")],
        "vLLM joins the thoughts of one message and puts them before its text; the proxy keeps the order",
        {
            "messages": [
                QUESTION,
                assistant(ONE),
                assistant(TWO),
                user("And of Italy?"),
            ]
        },
    ),
    messages(
        "a beginning",
        [QUESTION, assistant("The capital of")],
        "vLLM ends the last message and begins another; the proxy goes on with it, as Messages says",
    ),
    messages("stop string", [QUESTION], stop_sequences=["Paris"], max_tokens=12),
    messages(
        "a schema",
        [user("All well?")],
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        max_tokens=40,
    ),
]
