"""Plain calls over HTTP, streams by the official SDKs; and what an answer says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
from anthropic import Anthropic
from openai import OpenAI

from gyre.proxy.calls import Wire
from tests.vllm.cases import ROUTES, Case, Json


@dataclass
class Said:
    """What a client was told in one answer, whatever the wire."""

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Name and arguments, parsed."""
    reason: str | None = None


def anthropic(base: str) -> Anthropic:
    """`base` is the execution's URL without `/v1`."""
    return Anthropic(base_url=base, api_key="none", max_retries=0, timeout=120)


def openai(base: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=120)


def ask(base: str, case: Case) -> list[Said]:
    """One answer per choice.

    Raises:
        httpx.HTTPStatusError: a plain call was refused; SDKs raise errors of their own.
    """
    if case.body.get("stream"):
        return _streamed(base, case)
    answer = httpx.post(base + ROUTES[case.wire], json=case.body, timeout=120)
    assert answer.status_code == 200, answer.text
    return said_in(case.wire, answer.json())


def said_in(wire: Wire, answer: Json) -> list[Said]:
    match wire:
        case Wire.MESSAGES:
            return [_of_blocks(answer)]
        case Wire.RESPONSES:
            return [_of_items(answer)]
    return [_of_choice(choice["message"], choice["finish_reason"]) for choice in answer["choices"]]


def _streamed(base: str, case: Case) -> list[Said]:
    body = {name: value for name, value in case.body.items() if name != "stream"}
    if case.wire == Wire.MESSAGES:
        own, more = _parted(body, "model", "max_tokens", "messages")
        with anthropic(base) as client, client.messages.stream(**own, extra_body=more) as stream:
            return [_of_blocks(stream.get_final_message().to_dict())]
    if case.wire == Wire.RESPONSES:
        own, more = _parted(body, "model", "input")
        with openai(base) as asks:
            *_, last = asks.responses.create(**own, extra_body=more, stream=True)
        assert last.type in ("response.completed", "response.incomplete"), last
        return [_of_items(last.response.to_dict())]
    own, more = _parted(body, "model", "messages")
    with openai(base) as asks:
        chunks = [c.to_dict() for c in asks.chat.completions.create(**own, extra_body=more, stream=True)]
    return [_of_chunks(chunks, number) for number in range(case.body.get("n", 1))]


def _parted(body: Json, *names: str) -> tuple[Json, Json]:
    """What an SDK wants by name, and the rest: the SDKs no longer know all of it."""
    more = {name: value for name, value in body.items() if name not in names}
    return {name: body[name] for name in names}, more


def _of_blocks(message: Json) -> Said:
    said = Said(reason=message["stop_reason"])
    for block in message["content"]:
        said.reasoning += block.get("thinking", "")
        said.text += block.get("text", "")
        if block["type"] == "tool_use":
            said.calls.append((block["name"], block["input"]))
    return said


def _of_items(response: Json) -> Said:
    said = Said(reason=response["status"])
    for item in response["output"]:
        match item["type"]:
            case "function_call":
                said.calls.append((item["name"], json.loads(item["arguments"])))
            case "message":
                said.text += "".join(part["text"] for part in item["content"])
            case "reasoning":
                said.reasoning += "".join(part["text"] for part in item["content"])
    return said


def _of_choice(message: Json, reason: str | None) -> Said:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
    return Said(message.get("reasoning") or "", message.get("content") or "", calls, reason)


def _of_chunks(chunks: list[Json], number: int) -> Said:
    """One choice of a streamed chat; a call comes in parts, its name in the first."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == number]
    whole: Json = {"reasoning": "", "content": "", "tool_calls": []}
    for delta in (choice["delta"] for choice in choices):
        for name in ("reasoning", "content"):
            whole[name] += delta.get(name) or ""
        for part in delta.get("tool_calls") or ():
            if part["function"].get("name"):
                whole["tool_calls"].append({"function": {"name": part["function"]["name"], "arguments": ""}})
            whole["tool_calls"][-1]["function"]["arguments"] += part["function"].get("arguments") or ""
    return _of_choice(whole, choices[-1].get("finish_reason"))
