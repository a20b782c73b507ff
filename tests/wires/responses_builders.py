"""Requests, items and streams of Responses, as short as a test can say them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gyre.proxy.wires.responses.translate import Translated, translate
from gyre.proxy.wires.responses.writer import ResponsesWriter
from gyre.proxy.wires.translation import Dialect, Ending

Json = dict[str, Any]
CALL_ID = "0018b2f6c4a3d51e7a3f90bc"
EXEC: Json = {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}}
SPAWN: Json = {"type": "function", "name": "spawn_agent", "description": "Start one.", "parameters": {}}
AGENTS: Json = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [SPAWN]}
PATCH: Json = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: line+"},
}
FIND: Json = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": {}}
WEB: Json = {"type": "web_search", "external_web_access": True}
USAGE: Json = {
    "prompt_tokens": 40,
    "completion_tokens": 9,
    "total_tokens": 49,
    "prompt_tokens_details": {"cached_tokens": 32},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


def dialect(sampled: dict[str, str] | None = None, call_id: str = CALL_ID) -> Dialect:
    known = sampled or {}
    return Dialect(call_id, "reasoning_content", lambda ident: (known[ident],) if ident in known else ())


def body(*items: Json, **fields: Any) -> Json:
    return {"model": "m", "input": list(items), **fields}


def translated(*items: Json, sampled: dict[str, str] | None = None, **fields: Any) -> Translated:
    return translate(body(*items, **fields), dialect(sampled))


def messages(*items: Json, sampled: dict[str, str] | None = None, **fields: Any) -> list[Json]:
    found = translated(*items, sampled=sampled, **fields).chat["messages"]
    assert isinstance(found, list)
    return found


def writer(
    *tools: Json, sampled: dict[str, str] | None = None, call_id: str = CALL_ID, **fields: Any
) -> ResponsesWriter:
    asked = body(user("hi"), tools=list(tools), stream=True, **fields)
    return translate(asked, dialect(sampled, call_id)).writer()


def message(role: str, text: str, ident: str = "") -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    item: Json = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
    return item | ({"id": ident} if ident else {})


def user(text: str) -> Json:
    return message("user", text)


def said(text: str, ident: str = "") -> Json:
    return message("assistant", text, ident)


def thought(text: str, ident: str = "rs_1") -> Json:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": ident, "summary": [], "content": content, "encrypted_content": None}


def called(ident: str, arguments: str = '{"cmd": "ls"}', name: str = "exec_command", **more: Any) -> Json:
    return {"type": "function_call", "call_id": ident, "name": name, "arguments": arguments, **more}


def patched(ident: str, text: str, **more: Any) -> Json:
    return {"type": "custom_tool_call", "call_id": ident, "name": "apply_patch", "input": text, **more}


def output(ident: str, result: Any = "done", kind: str = "function_call_output") -> Json:
    return {"type": kind, "call_id": ident, "output": result}


def chat_call(ident: str, name: str, arguments: str) -> Json:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def events(stream: bytes) -> list[Json]:
    """The data of every event; each is named like its type, numbered in order."""
    found: list[Json] = []
    for event in stream.split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def run(out: ResponsesWriter, deltas: Iterable[Json], ending: Ending | None = None) -> bytes:
    """A whole stream."""
    begun = out.start(None)
    told = [out.delta(delta) for delta in deltas]
    return begun + b"".join(told) + out.end(ending or Ending("stop"))


def kinds(found: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]
