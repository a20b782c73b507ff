"""What we answer, read by Anthropic's own Python SDK."""

from __future__ import annotations

import json

import anthropic
import httpx2
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared.error_response import ErrorResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gyre.proxy.wires.messages.errors import OVERFLOW, error_body, error_type
from gyre.proxy.wires.messages.writer import MessagesWriter
from gyre.proxy.wires.translation import Ending, Json
from tests.wires.messages_builders import PATIENT, chat_answers, deltas_of, events_of, spelled, written

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
ENDINGS = st.builds(
    Ending,
    st.sampled_from(["stop", "length", "tool_calls", "content_filter", "abort", None]),
    st.sampled_from([None, "END"]),
    st.sampled_from([None, USAGE]),
)


def client(status: int, kind: str, content: bytes) -> anthropic.Anthropic:
    """A client whose server gives this one answer."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind}, content=content)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return anthropic.Anthropic(api_key="k", base_url="http://engine", max_retries=0, http_client=http)


def streamed(stream: bytes) -> Message:
    """What the SDK makes of the stream."""
    sdk = client(200, "text/event-stream", stream)
    with sdk.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "a"}]) as events:
        return events.get_final_message()


def plain(message: Message) -> Json:
    """Without what the SDK adds."""
    said = message.model_dump(exclude_none=True)
    for block in said["content"]:
        block.pop("parsed_output", None)
    return said


@settings(PATIENT, max_examples=60)
@given(st.data(), ENDINGS)
def test_deltas_cut_anywhere_make_the_same_answer(data: st.DataObject, ending: Ending) -> None:
    message = data.draw(chat_answers())
    stream, answer = written(data.draw(deltas_of(message)), ending)
    assert answer == written([message], ending)[1]
    for event in events_of(stream):
        EVENT.validate_python(event)
    assert plain(Message.model_validate(answer)) == plain(streamed(stream))


@PATIENT
@given(st.data())
def test_blocks_open_and_close_one_after_the_other(data: st.DataObject) -> None:
    stream, answer = written(data.draw(deltas_of(data.draw(chat_answers()))), Ending("stop"))
    first, *between, _, last = events_of(stream)
    assert (first["type"], last["type"]) == ("message_start", "message_stop")
    opened: list[int] = []
    closed: list[int] = []
    for event in between:
        match event["type"]:
            case "content_block_start":
                assert opened == closed
                opened.append(event["index"])
            case "content_block_delta":
                assert opened != closed and event["index"] == opened[-1]
            case "content_block_stop":
                closed.append(event["index"])
    assert opened == closed == list(range(len(answer["content"])))


@PATIENT
@given(st.data())
def test_the_sampled_arguments_arrive_as_they_were_sampled(data: st.DataObject) -> None:
    message = data.draw(chat_answers())
    stream, _ = written(data.draw(deltas_of(message)), Ending("stop"))
    arguments: dict[int, str] = {}
    for event in events_of(stream):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            arguments[event["index"]] = ""
        if event.get("delta", {}).get("type") == "input_json_delta":
            arguments[event["index"]] += event["delta"]["partial_json"]
    said = [part["function"]["arguments"] for part in message.get("tool_calls", [])]
    assert list(arguments.values()) == said


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_are_of_the_types_that_the_sdk_knows(status: int, kind: str) -> None:
    said = error_body(status, "no", "any")
    assert ErrorResponse.model_validate_json(said).error.type == kind
    with pytest.raises(anthropic.APIStatusError) as caught:
        client(status, "application/json", said).messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "a"}]
        )
    assert (caught.value.status_code, caught.value.type, caught.value.api_message) == (status, kind, "no")


def test_some_types_are_not_of_the_status_alone() -> None:
    assert error_type(413, "too_large") == "request_too_large"
    assert error_type(500, OVERFLOW) == "invalid_request_error"


def test_an_error_in_mid_stream_reaches_the_caller() -> None:
    writer = MessagesWriter("c1", "m")
    stream = writer.start(3) + writer.delta({"content": "a"}) + writer.failed(503, "gone", "upstream_cut")
    with pytest.raises(anthropic.APIStatusError, match="gone") as caught:
        streamed(stream)
    assert caught.value.type == "overloaded_error"


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 "
            "input tokens, which exceeds this limit even without any output tokens.",
            "prompt is too long: 8193 tokens > 8192 maximum",
        ),
        (
            "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
        (
            "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
        (
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
        (
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested "
            "a total of 9000 tokens: 5000 tokens from the input messages and 4000 tokens for the completion.",
            "input length and `max_tokens` exceed context limit: 5000 + 4000 > 8192",
        ),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (5000 in "
            "the messages, 4000 in the completion).",
            "input length and `max_tokens` exceed context limit: 5000 + 4000 > 8192",
        ),
        (
            "This model's maximum context length is 8192 tokens. However, your prompt contains 99999 "
            "characters (more than 65536 characters).",
            "prompt is too long: This model's",
        ),
        ("too much", "prompt is too long: too much"),
        ("prompt is too long: 3 tokens > 2 maximum", "prompt is too long: 3 tokens > 2 maximum"),
    ],
)
def test_an_overflow_is_said_as_claude_code_looks_for_it(said: str, heard: str) -> None:
    error = ErrorResponse.model_validate_json(error_body(400, said, OVERFLOW)).error
    assert error.type == "invalid_request_error"
    assert error.message.startswith(heard)
    assert said in error.message


@PATIENT
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers()), st.data())
def test_spellings_mean_what_they_spell(value: Json, data: st.DataObject) -> None:
    """The strategy itself: otherwise the tests above would prove little."""
    assert json.loads(data.draw(spelled(value))) == value
