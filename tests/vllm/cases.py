"""Requests of the three wires, and what vLLM's own conversion of each makes of them.

Where vLLM reads a wire as we do, its render of the client's body is the prompt. Where it does not, a case
says why, and what would have to be written for vLLM to render the prompt that we record: so the difference
is that and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gyre.proxy.calls import Wire
from tests.vllm.server import NAME

Json = dict[str, Any]
ROUTES = {
    Wire.CHAT: "/v1/chat/completions",
    Wire.MESSAGES: "/v1/messages",
    Wire.RESPONSES: "/v1/responses",
}


@dataclass(frozen=True)
class Case:
    name: str
    wire: Wire
    body: Json
    why: str = ""
    """Why vLLM's own render is another one; empty where it must be the same."""
    instead: Json = field(default_factory=dict)
    """Fields to replace for vLLM to render the same; empty where the wire has no way to say it."""
    flags: tuple[str, ...] = ()
    """What the row must tell of things left out."""


def chat(name: str, messages: list[Json], **fields: Any) -> Case:
    body = {"model": NAME, "max_tokens": 8, "temperature": 0, "messages": messages, **fields}
    return Case(name, Wire.CHAT, body)


def messages(
    name: str,
    said: list[Json],
    why: str = "",
    instead: Json | None = None,
    flags: tuple[str, ...] = (),
    **fields: Any,
) -> Case:
    body = {"model": NAME, "max_tokens": 8, "temperature": 0, "messages": said, **fields}
    return Case(name, Wire.MESSAGES, body, why, instead or {}, flags)


def responses(
    name: str,
    said: str | list[Json],
    why: str = "",
    instead: Json | None = None,
    flags: tuple[str, ...] = (),
    **fields: Any,
) -> Case:
    body = {"model": NAME, "max_output_tokens": 8, "temperature": 0, "input": said, **fields}
    return Case(name, Wire.RESPONSES, body, why, instead or {}, flags)


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


def text(said: str, kind: str = "text") -> Json:
    return {"type": kind, "text": said}
