"""How each wire writes the same request: an opening, messages or items that only grow, and a tail.

Where agents put their fields, these do too: Claude Code marks the last block of every request for the
cache, and only the last one; Codex has its instructions in front.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.material import CALL_TOKENS, argument, call_id


@dataclass(frozen=True)
class Answer:
    """What the engine said to one request, in tokens of text and in tool calls."""

    said: int
    calls: int

    @property
    def tokens(self) -> int:
        return self.said + self.calls * CALL_TOKENS


class Form(Protocol):
    path: bytes
    closing: bytes
    """What `user` and `result` end in and `tail` begins with."""

    def opening(self, system: bytes) -> bytes:
        """From the body's first byte to where the list begins."""

    def first(self, system: bytes) -> list[bytes]:
        """What stands in the list before anybody has spoken."""

    def user(self, text: bytes) -> bytes: ...

    def answer(self, said: bytes, text: bytes, position: int) -> list[bytes]:
        """Text and the tool call whose first token is at `position` of the material `text`."""

    def result(self, position: int, output: bytes) -> bytes:
        """Of that call."""

    def tail(self, script: bytes, system: bytes, tools: Sequence[dict[str, Any]], stream: bool) -> bytes: ...

    def events(self, answer: Answer) -> tuple[int, ...]:
        """How many events a stream may have."""


class Chat:
    path = b"/v1/chat/completions"
    closing = b""

    def opening(self, system: bytes) -> bytes:
        return b'{"messages":['

    def first(self, system: bytes) -> list[bytes]:
        return [b'{"role":"system","content":"%b"}' % system]

    def user(self, text: bytes) -> bytes:
        return b'{"role":"user","content":"%b"}' % text

    def answer(self, said: bytes, text: bytes, position: int) -> list[bytes]:
        function = b'{"name":"tool_0","arguments":"%b"}' % arguments(text, position)
        call = b'{"id":"%b","type":"function","function":%b}' % (call_id(position), function)
        return [b'{"role":"assistant","content":"%b","tool_calls":[%b]}' % (said, call)]

    def result(self, position: int, output: bytes) -> bytes:
        return b'{"role":"tool","tool_call_id":"%b","content":"%b"}' % (call_id(position), output)

    def tail(self, script: bytes, system: bytes, tools: Sequence[dict[str, Any]], stream: bool) -> bytes:
        described = [{"type": "function", "function": tool} for tool in tools]
        ending = b',"stream":true' if stream else b""
        return b'],"model":"bench"%b%b%b}' % (listed(described), template(script), ending)

    def events(self, answer: Answer) -> tuple[int, ...]:
        # The role, the tokens, the end, [DONE]; usage only where the proxy does not hide it.
        return answer.tokens + 3, answer.tokens + 4


class Messages:
    path = b"/v1/messages?beta=true"
    closing = b"}]}"

    def opening(self, system: bytes) -> bytes:
        return b'{"model":"bench","messages":['

    def first(self, system: bytes) -> list[bytes]:
        return []

    def user(self, text: bytes) -> bytes:
        return b'{"role":"user","content":[{"type":"text","text":"%b"}]}' % text

    def answer(self, said: bytes, text: bytes, position: int) -> list[bytes]:
        use = b'{"type":"tool_use","id":"%b","name":"tool_0","input":{"path":"%b"}}'
        call = use % (call_id(position), argument(text, position))
        return [b'{"role":"assistant","content":[{"type":"text","text":"%b"},%b]}' % (said, call)]

    def result(self, position: int, output: bytes) -> bytes:
        block = b'{"type":"tool_result","tool_use_id":"%b","content":"%b"}' % (call_id(position), output)
        return b'{"role":"user","content":[%b]}' % block

    def tail(self, script: bytes, system: bytes, tools: Sequence[dict[str, Any]], stream: bool) -> bytes:
        names = {"name": "name", "description": "description", "parameters": "input_schema"}
        described = [{names[key]: value for key, value in tool.items()} for tool in tools]
        mark = b',"cache_control":{"type":"ephemeral"}'
        prompt = b',"system":[{"type":"text","text":"%b"%b}]' % (system, mark)
        limits = b',"max_tokens":32000,"thinking":{"type":"adaptive"},"metadata":{"user_id":"bench"}'
        ending = b',"stream":true' if stream else b""
        fields = (mark, self.closing, prompt, listed(described), limits, template(script), ending)
        return b"%b%b]%b%b%b%b%b}" % fields

    def events(self, answer: Answer) -> tuple[int, ...]:
        # The message begins, and ends with two; every block begins and ends.
        blocks = bool(answer.said) + answer.calls
        return (answer.tokens + 2 * blocks + 3,)


class Responses:
    path = b"/v1/responses"
    closing = b""

    def opening(self, system: bytes) -> bytes:
        return b'{"model":"bench","instructions":"%b","input":[' % system

    def first(self, system: bytes) -> list[bytes]:
        return []

    def user(self, text: bytes) -> bytes:
        return b'{"type":"message","role":"user","content":[{"type":"input_text","text":"%b"}]}' % text

    def answer(self, said: bytes, text: bytes, position: int) -> list[bytes]:
        message = b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"%b"}]}'
        call = b'{"type":"function_call","name":"tool_0","arguments":"%b","call_id":"%b"}'
        return [message % said, call % (arguments(text, position), call_id(position))]

    def result(self, position: int, output: bytes) -> bytes:
        item = b'{"type":"function_call_output","call_id":"%b","output":"%b"}'
        return item % (call_id(position), output)

    def tail(self, script: bytes, system: bytes, tools: Sequence[dict[str, Any]], stream: bool) -> bytes:
        described = [{"type": "function", "strict": False, **tool} for tool in tools]
        choice = b',"tool_choice":"auto","parallel_tool_calls":true' if tools else b""
        kept = b',"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"bench"'
        ending = b',"stream":true' if stream else b""
        return b"]%b%b%b%b%b}" % (listed(described), choice, kept, template(script), ending)

    def events(self, answer: Answer) -> tuple[int, ...]:
        # The response begins with two events and ends with one; so do calls the other way round, and text
        # has two and three.
        return (answer.tokens + (5 if answer.said else 0) + 3 * answer.calls + 3,)


FORMS: dict[str, Form] = {"chat": Chat(), "messages": Messages(), "responses": Responses()}


def arguments(text: bytes, position: int) -> bytes:
    """Arguments of a call, inside a JSON string."""
    return rb"{\"path\": \"%b\"}" % argument(text, position)


def listed(tools: Sequence[dict[str, Any]]) -> bytes:
    return b',"tools":' + json.dumps(tools).encode() if tools else b""


def template(script: bytes) -> bytes:
    """The one field that reaches the engine on every wire, whatever it holds."""
    return b',"chat_template_kwargs":{"user":"%b"}' % script
