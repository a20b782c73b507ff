"""The official SDK as a judge: every event and every answer is one that it knows, cut as it may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gyre.proxy.wires.responses.errors import error_body
from gyre.proxy.wires.translation import Ending
from tests.proxy.json_text import TEXT
from tests.wires.responses_builders import (
    AGENTS,
    EXEC,
    FIND,
    PATCH,
    USAGE,
    WEB,
    Json,
    chat_call,
    events,
    kinds,
    run,
    writer,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATIENT, FEWER = settings(deadline=None), settings(max_examples=30, deadline=None)
TOOLS = (EXEC, AGENTS, PATCH, FIND, WEB)
NAMES = ["exec_command", "agents__spawn_agent", "apply_patch", "tool_search", "made_up"]
ARGUMENTS = TEXT.map(lambda text: json.dumps({"input": text})) | st.just('{"input": "cut o')
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), max_size=3)


def deltas_of(message: Json, size: int) -> Iterator[Json]:
    """A message as an engine streams it: one field after the other, in pieces."""
    for field in ("reasoning_content", "content", "refusal"):
        text = message.get(field) or ""
        yield from ({field: text[at : at + size]} for at in range(0, len(text), size))
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {"name": name, "arguments": ""}}]}
        for at in range(0, len(arguments), size):
            piece = {"arguments": arguments[at : at + size]}
            yield {"tool_calls": [{"index": index, "function": piece}]}


@st.composite
def messages(draw: st.DrawFn) -> Json:
    calls = draw(CALLS)
    return {
        "role": "assistant",
        "reasoning_content": draw(TEXT),
        "content": draw(TEXT),
        "refusal": draw(st.none() | TEXT),
        "tool_calls": [chat_call(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(calls)],
    }


@PATIENT
@given(messages(), st.integers(1, 5), st.booleans(), st.sampled_from(["stop", "tool_calls", "length", None]))
def test_every_event_is_one_that_the_sdk_knows_and_the_last_has_the_whole_answer(
    message: Json, size: int, sealed: bool, reason: str | None
) -> None:
    include = ["reasoning.encrypted_content"] if sealed else None
    out = writer(*TOOLS, include=include)
    found = events(run(out, deltas_of(message, size), Ending(reason, None, USAGE)))
    for event in found:
        EVENT.validate_python(event)
    Response.model_validate(out.answer())
    assert found[-1]["response"] == out.answer()
    assert kinds(found)[:2] == ["created", "in_progress"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: _index(item["id"])) == out.answer()["output"]


def _index(ident: str) -> int:
    return int(ident.rpartition("_")[2])


@PATIENT
@given(messages(), st.integers(1, 5))
def test_pieces_are_the_whole(message: Json, size: int) -> None:
    """A plain answer goes the same way, as one delta."""
    pieces, whole = writer(*TOOLS), writer(*TOOLS)
    run(pieces, deltas_of(message, size))
    run(whole, [message])
    assert pieces.answer()["output"] == whole.answer()["output"]


@PATIENT
@given(messages(), st.integers(1, 5))
def test_deltas_add_up_to_their_items(message: Json, size: int) -> None:
    out = writer(*TOOLS)
    told: dict[str, str] = {}
    for event in events(run(out, deltas_of(message, size))):
        if event["type"].endswith(".delta"):
            told[event["item_id"]] = told.get(event["item_id"], "") + event["delta"]
    for item in out.answer()["output"]:
        parts = [part.get("text", part.get("refusal")) for part in item.get("content", ())]
        text = item.get("arguments", item.get("input", "".join(parts)))
        assert item["type"] == "tool_search_call" or told.get(item["id"], "") == text


@FEWER
@given(messages(), st.integers(1, 5))
def test_the_official_client_reads_the_same_response(message: Json, size: int) -> None:
    out = writer(*TOOLS)
    stream = run(out, deltas_of(message, size), Ending("stop", None, USAGE))
    with client(stream) as openai_client, openai_client.responses.stream(model="m", input="hi") as read:
        final = read.get_final_response()
    expected = Response.model_validate(out.answer())
    assert _without_parsed(final.to_dict()) == expected.to_dict()


def _without_parsed(value: Any) -> Any:
    """The client adds what it parsed of a text."""
    if isinstance(value, dict):
        return {key: _without_parsed(item) for key, item in value.items() if not key.startswith("parsed")}
    return [_without_parsed(item) for item in value] if isinstance(value, list) else value


def client(body: bytes, status: int = 200) -> openai.OpenAI:
    def answer(request: httpx2.Request) -> httpx2.Response:
        kind = "application/json" if body.startswith(b"{") else "text/event-stream"
        return httpx2.Response(status, content=body, headers={"content-type": kind})

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="x", base_url="http://engine/v1", http_client=transport, max_retries=0)


def test_the_official_client_reads_a_plain_answer() -> None:
    out = writer(*TOOLS)
    run(
        out,
        [{"role": "assistant", "content": "hello", "tool_calls": [chat_call("c1", "exec_command", "{}")]}],
    )
    with client(json.dumps(out.answer()).encode()) as openai_client:
        read = openai_client.responses.create(model="m", input="hi")
    assert (read.output_text, read.output[1].type) == ("hello", "function_call")


@pytest.mark.parametrize("status", [429, 502])
def test_a_failure_is_one_that_the_sdk_knows(status: int) -> None:
    for event in events(writer().failed(status, "broke off", "x")):
        EVENT.validate_python(event)


@pytest.mark.parametrize(
    ("status", "code", "error", "told", "kind"),
    [
        (
            400,
            "context_length_exceeded",
            openai.BadRequestError,
            "context_length_exceeded",
            "invalid_request_error",
        ),
        (400, "invalid_request", openai.BadRequestError, "invalid_request", "invalid_request_error"),
        (429, "whatever", openai.RateLimitError, "rate_limit_exceeded", "rate_limit_error"),
        (503, "no_backend", openai.InternalServerError, "server_is_overloaded", "server_error"),
        (500, "whatever", openai.InternalServerError, "whatever", "server_error"),
    ],
)
def test_plain_errors_are_the_sdks_exceptions(
    status: int, code: str, error: type[openai.APIStatusError], told: str, kind: str
) -> None:
    body = error_body(status, "too long", code)
    with client(body, status) as openai_client, pytest.raises(error) as problem:
        openai_client.responses.create(model="m", input="hi")
    assert (problem.value.code, problem.value.type) == (told, kind)
    assert "too long" in problem.value.message
