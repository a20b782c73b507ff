"""Calls of the Messages wire, as Claude Code would make them."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, ToolCall
from tests.proxy.running import RunningProxy

Json = dict[str, Any]
TOOL = {"name": "Bash", "description": "runs it", "input_schema": {"type": "object", "properties": {}}}
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.220.a1b; cc_entrypoint=cli;"},
    {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
]
BODY: Json = {
    "model": "m",
    "max_tokens": 100,
    "system": SYSTEM,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "look around"}]}],
    "tools": [TOOL],
}
LOOK = Answer(text="I look.", reasoning="hm", tool_calls=(ToolCall("Bash", '{"command":  "ls"}'),))


def post(proxy: RunningProxy, body: Json = BODY, **fields: Any) -> httpx.Response:
    headers = {"x-api-key": "dummy", "anthropic-version": "2023-06-01"}
    return proxy.post(proxy.base() + "/messages?beta=true", json=body | fields, headers=headers)


def sdk(proxy: RunningProxy) -> anthropic.Anthropic:
    """The official client, as a harness would make it."""
    return anthropic.Anthropic(base_url=f"{proxy.url}/x/e1", api_key="dummy", max_retries=0)


def cut(proxy: RunningProxy, **fields: Any) -> tuple[bytes, bool]:
    """What came of a stream before its connection broke, and whether it did."""
    came, url = b"", proxy.base() + "/messages"
    with httpx.stream("POST", url, json=BODY | {"stream": True} | fields, timeout=30) as response:
        try:
            for chunk in response.iter_raw():
                came += chunk
        except httpx.RemoteProtocolError:
            return came, True
    return came, False


def follow_up(arguments: Json) -> Json:
    """The harness brings the tool's call back, as an object, and its result."""
    use = {"type": "tool_use", "id": "call_0", "name": "Bash", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "call_0", "content": "a b"}
    said = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return BODY | {"messages": [*BODY["messages"], *said]}


def arguments_sent(engine: FakeEngine) -> str:
    calls = [call for message in engine.calls[-1].json["messages"] for call in message.get("tool_calls", ())]
    text: str = calls[-1]["function"]["arguments"]
    return text
