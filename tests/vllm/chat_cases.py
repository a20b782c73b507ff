"""Chat requests: the wire that vLLM is asked in, so its own render is always the prompt."""

from __future__ import annotations

from tests.vllm.cases import Json, assistant, chat, user

PATH: Json = {"type": "string", "enum": ["a.txt", "b.txt"]}
PARAMETERS: Json = {
    "type": "object",
    "properties": {"path": PATH},
    "required": ["path"],
    "additionalProperties": False,
}
LOOK: Json = {"name": "look", "description": "Reads a file.", "parameters": PARAMETERS}
TOOLS: list[Json] = [{"type": "function", "function": LOOK}]


def call(ident: str, arguments: str) -> Json:
    return {"id": ident, "type": "function", "function": {"name": "look", "arguments": arguments}}


def result(ident: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": ident, "content": content}


HISTORY = [
    {"role": "system", "content": "Answer in one word."},
    user("What is in both files?"),
    assistant(
        None,
        reasoning_content="First the one, then the other.",
        tool_calls=[call("call_1", '{"path": "a.txt"}'), call("call_2", '{"path":"b.txt"}')],
    ),
    result("call_1", "É"),
    result("call_2", '{"x": 1.0}'),
]
QUESTION = user("What is the capital of France?")

CHAT = [
    chat("plain", [QUESTION]),
    chat("stream", [QUESTION], stream=True),
    chat("two answers", [QUESTION], n=2, temperature=1.0, seed=1),
    chat("two answers streamed", [QUESTION], n=2, temperature=1.0, seed=1, stream=True),
    chat("tools and results", HISTORY, tools=TOOLS),
    chat("stop string", [QUESTION], stop=["Paris"], max_tokens=12),
    chat("forced call", [user("Look into a.txt")], tools=TOOLS, tool_choice="required", max_tokens=60),
    chat(
        "thinking, then a call",
        [user("Look into a.txt")],
        tools=TOOLS,
        tool_choice="required",
        reasoning_effort="low",
        thinking_token_budget=6,
        max_tokens=60,
        stream=True,
    ),
    chat("developer", [{"role": "developer", "content": "Be short."}, QUESTION]),
    chat("parts", [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])]),
]
