"""Two turns of an agent on each wire, with the official SDKs: the second prompt holds what the first sampled.

And what a client is told of a prompt that is too long for the engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import ToolUseBlock
from openai.types.responses import ResponseFunctionToolCall

from gyre.proxy import read_log
from gyre.proxy.log.reading.read import Log
from tests.proxy.processes import ProxyProcess, wait_for
from tests.vllm import chat_cases, clients, messages_cases, responses_cases
from tests.vllm.recorded import ids_of
from tests.vllm.server import NAME, VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# The SDKs have a type for each shape of them.
TOOLS: Any = chat_cases.TOOLS
MESSAGES_TOOLS: Any = [messages_cases.LOOK]
FUNCTIONS: Any = [responses_cases.FUNCTION]
TASK: Any = [{"role": "user", "content": "Look into a.txt"}]
RESULT = "It is empty."
QUESTION = "What is the capital of France?"
AGAIN = "Say it once more."
GREEDY = {"temperature": 0}
LONG = "word " * 5000


@pytest.fixture(scope="module")
def proxy(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with ProxyProcess(tmp_path_factory.mktemp("agents"), vllm.url) as running:
        yield running


@pytest.fixture
def base(proxy: ProxyProcess, request: pytest.FixtureRequest) -> str:
    """The URL of an execution named after the test."""
    return f"{proxy.url}/x/{request.node.name}"


def two_rows(base: str, proxy: ProxyProcess) -> Log:
    """The log of this test's execution when its second answer is on disk."""
    execution = base.rpartition("/")[2]
    wait_for(lambda: len(read_log(proxy.logs, executions=[execution]).calls) == 2)
    return read_log(proxy.logs, executions=[execution])


def assert_second_goes_on_from_first(log: Log) -> None:
    """Prompt and answer of the first turn stand in the second's prompt token by token, end mark included."""
    first, second = log.calls.to_pylist()
    before = ids_of(log.prompt_ids(first["call_id"])) + first["output_ids"]
    assert ids_of(log.prompt_ids(second["call_id"]))[: len(before)] == before
    assert (second["parent_call_id"], second["prompt_shared"]) == (first["call_id"], len(before))


def test_chat_goes_on_token_by_token(base: str, proxy: ProxyProcess) -> None:
    with clients.openai(base) as client:
        said: Any = [{"role": "user", "content": QUESTION}]
        first = client.chat.completions.create(model=NAME, messages=said, temperature=0, max_tokens=20)
        said += [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": AGAIN},
        ]
        client.chat.completions.create(model=NAME, messages=said, temperature=0, max_tokens=8)
    assert_second_goes_on_from_first(two_rows(base, proxy))


def test_messages_go_on_token_by_token(base: str, proxy: ProxyProcess) -> None:
    with clients.anthropic(base) as client:
        said: Any = [{"role": "user", "content": QUESTION}]
        first = client.messages.create(model=NAME, messages=said, max_tokens=20, extra_body=GREEDY)
        said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": AGAIN}]
        with client.messages.stream(
            model=NAME, messages=said, max_tokens=8, system=[], extra_body=GREEDY
        ) as stream:
            stream.until_done()
    assert_second_goes_on_from_first(two_rows(base, proxy))


def test_responses_go_on_token_by_token(base: str, proxy: ProxyProcess) -> None:
    with clients.openai(base) as client:
        first = client.responses.create(model=NAME, input=QUESTION, temperature=0, max_output_tokens=20)
        history = [item.to_dict() for item in first.output]
        said: Any = [{"role": "user", "content": QUESTION}, *history, {"role": "user", "content": AGAIN}]
        with client.responses.stream(model=NAME, input=said, temperature=0, max_output_tokens=8) as stream:
            stream.until_done()
    assert_second_goes_on_from_first(two_rows(base, proxy))


def assert_second_holds_call_and_result(vllm: VllmServer, log: Log) -> None:
    first, second = log.calls.to_pylist()
    assert (first["finish_reason"], second["capture_quality"]) == ("tool_calls", "exact")
    (call,) = json.loads(first["response"])["tool_calls"]
    ident, arguments = call["id"], json.loads(call["function"]["arguments"])
    prompt = vllm.text(ids_of(log.prompt_ids(second["call_id"])))
    said = f'<tool_call id="{ident}">\n{{"name": "look", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    answered = f'<tool_response id="{ident}">\n{RESULT}\n</tool_response>'
    assert said in prompt and answered in prompt.partition(said)[2]


def test_a_chat_call_and_its_result_are_in_the_next_prompt(
    vllm: VllmServer, base: str, proxy: ProxyProcess
) -> None:
    with clients.openai(base) as client:
        said = [*TASK]
        first = client.chat.completions.create(
            model=NAME, messages=said, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=60
        )
        message = first.choices[0].message
        assert message.tool_calls
        (call,) = message.tool_calls
        said += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        client.chat.completions.create(model=NAME, messages=said, tools=TOOLS, max_tokens=8)
    assert_second_holds_call_and_result(vllm, two_rows(base, proxy))


def test_a_tool_use_and_its_result_are_in_the_next_prompt(
    vllm: VllmServer, base: str, proxy: ProxyProcess
) -> None:
    with clients.anthropic(base) as client:
        said = [*TASK]
        with client.messages.stream(
            model=NAME,
            messages=said,
            tools=MESSAGES_TOOLS,
            tool_choice={"type": "any"},
            max_tokens=60,
            extra_body=GREEDY,
        ) as stream:
            first = stream.get_final_message()
        assert first.stop_reason == "tool_use"
        (use,) = (block for block in first.content if isinstance(block, ToolUseBlock))
        result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
        said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        client.messages.create(model=NAME, messages=said, tools=MESSAGES_TOOLS, max_tokens=8)
    assert_second_holds_call_and_result(vllm, two_rows(base, proxy))


def test_a_function_call_and_its_output_are_in_the_next_prompt(
    vllm: VllmServer, base: str, proxy: ProxyProcess
) -> None:
    with clients.openai(base) as client:
        with client.responses.stream(
            model=NAME,
            input=TASK,
            tools=FUNCTIONS,
            tool_choice="required",
            temperature=0,
            max_output_tokens=60,
        ) as stream:
            first = stream.get_final_response()
        (call,) = (item for item in first.output if isinstance(item, ResponseFunctionToolCall))
        said: Any = [*TASK, *(item.to_dict() for item in first.output)]
        said.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
        client.responses.create(model=NAME, input=said, tools=FUNCTIONS, max_output_tokens=8)
    assert_second_holds_call_and_result(vllm, two_rows(base, proxy))


def test_a_prompt_that_is_too_long_is_refused_in_each_wires_own_words(base: str) -> None:
    with clients.anthropic(base) as client, pytest.raises(anthropic.BadRequestError) as told:
        client.messages.create(model=NAME, messages=[{"role": "user", "content": LONG}], max_tokens=8)
    assert "prompt is too long" in told.value.message
    with clients.openai(base) as asks, pytest.raises(openai.BadRequestError) as refused:
        asks.responses.create(model=NAME, input=LONG, max_output_tokens=8)
    assert refused.value.code == "context_length_exceeded"
