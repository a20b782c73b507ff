"""OpenAI's own client reads all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine.server import rig
from tests.engine.server.rig import Running
from tests.engine.server.test_chat import CALL, TOOL

USER: Any = rig.USER
TOOLS: Any = [TOOL]


@pytest.fixture
def client(engine: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    said = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=8, n=2, logprobs=True, top_logprobs=2, seed=1
    )
    assert len(said.choices) == 2 and said.usage and said.usage.completion_tokens == 16
    entries = said.choices[0].logprobs and said.choices[0].logprobs.content
    assert entries and len(entries) == 8 and len(entries[0].top_logprobs) == 2


def test_chat_streams(client: openai.OpenAI) -> None:
    text, usage = "", None
    with client.chat.completions.create(
        model="tiny",
        messages=USER,
        max_tokens=50,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"script": "Grüße 😀"},
    ) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "Grüße 😀"
    assert usage and usage.completion_tokens > 3 and usage.prompt_tokens_details is not None


def test_tools_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=USER, max_tokens=200, tools=TOOLS, extra_body={"script": f"I look. {CALL}"}
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content == "I look." and message.tool_calls
    assert json.loads(message.tool_calls[0].function.arguments) == {"at": "the sky"}


def test_completions(client: openai.OpenAI, engine: Running) -> None:
    said = client.completions.create(model="tiny", prompt=engine.ids("Once upon"), max_tokens=5, logprobs=1)
    logprobs = said.choices[0].logprobs
    assert logprobs and logprobs.tokens and len(logprobs.tokens) == 5
    with client.completions.create(model="tiny", prompt="Once", max_tokens=5, stream=True) as chunks:
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=USER, max_tokens=-1)
    assert (bad.value.param, bad.value.type) == ("max_tokens", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-17", messages=USER)
    assert unknown.value.code == "model_not_found"
    long: Any = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(openai.BadRequestError) as overflow:
        client.chat.completions.create(model="tiny", messages=long)
    assert overflow.value.code == "context_length_exceeded"
