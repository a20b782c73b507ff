"""The fields of a request beside its items: carried, answered again, left out, or refused."""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.responses.refusal import malformed, named_at, note
from gyre.proxy.wires.translation import Json

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos"),
    *("chat_template_kwargs",),
)
"""Of one meaning on both wires, or what engines take on both."""
_READ = frozenset(
    (
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream"),
        *("max_output_tokens", "text", "reasoning", "include", "top_logprobs", "truncation"),
        *("previous_response_id", "conversation", "background", "prompt"),
    )
)
_TRANSPORT = frozenset(
    (
        *("store", "metadata", "client_metadata", "user", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "stream_options"),
        "max_tool_calls",
    )
)
"""Say nothing of what to answer: who asks, what to keep, and limits of tools that are left out anyway."""
_KEPT_ELSEWHERE = {
    "previous_response_id": "refers to a response",
    "conversation": "refers to a conversation",
    "prompt": "refers to a prompt template",
    "background": "asks for a response to be fetched later",
}
_EFFORTS = ("low", "medium", "high")
"""What every engine that knows the field takes."""


def refuse_state(body: Json) -> None:
    """Refuse what would need a server that keeps responses.

    Raises:
        RequestError: the request does.
    """
    for name, what in _KEPT_ELSEWHERE.items():
        if body.get(name) not in (None, False):
            raise malformed(
                name,
                f"{what}, and the proxy keeps none; send the whole input with every call (`store: false`)",
            )


def settings(body: Json, lost: list[str]) -> Json:
    """All of chat's fields but messages and tools.

    Raises:
        RequestError: a field is malformed.
    """
    chat: Json = {"model": named_at(body, "model", "")}
    chat |= {name: body[name] for name in _SAME if body.get(name) is not None}
    if (limit := body.get("max_output_tokens")) is not None:
        chat["max_tokens"] = limit
    chat |= _text(_object(body, "text"), lost)
    chat |= _reasoning(_object(body, "reasoning"), lost)
    if LOGPROBS in included(body) or body.get("top_logprobs"):
        note(lost, "logprobs_left_out")
    if body.get("truncation") == "auto":
        note(lost, "truncation_left_out")
    for name, value in body.items():
        if value is not None and name not in _READ and name not in _TRANSPORT and name not in _SAME:
            note(lost, f"field_left_out:{name}")
    return chat | _stream(body)


def included(body: Json) -> list[Any]:
    """What the client wants beside the answer."""
    include = body.get("include")
    if include is None:
        return []
    if not isinstance(include, list):
        raise malformed("include", "must be a list")
    return include


def instructions_of(body: Json) -> str | None:
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise malformed("instructions", "must be a string")
    return instructions


def echo(body: Json) -> Json:
    """The fields of a request that its response repeats."""
    parallel = body.get("parallel_tool_calls")
    said: Json = {
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "parallel_tool_calls": parallel if isinstance(parallel, bool) else True,
        "previous_response_id": None,
        "reasoning": body.get("reasoning"),
        "store": False,
        "temperature": body.get("temperature"),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
    }
    for name in ("user", "prompt_cache_key", "safety_identifier"):
        if body.get(name) is not None:
            said[name] = body[name]
    return said


def _object(body: Json, name: str) -> Json:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise malformed(name, "must be an object")
    return value or {}


def _stream(body: Json) -> Json:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise malformed("stream", "must be true or false")
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}


def _text(text: Json, lost: list[str]) -> Json:
    if text.get("verbosity") is not None:
        note(lost, "verbosity_left_out")
    form = text.get("format")
    match form:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"response_format": {"type": "json_object"}}
        case {"type": "json_schema", "schema": dict(schema)}:
            named = {"name": form.get("name") or "answer", "schema": schema}
            named |= {key: form[key] for key in ("description", "strict") if form.get(key) is not None}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case {"type": "json_schema"}:
            raise malformed("text.format.schema", "must be an object")
    raise malformed("text.format.type", "must be `text`, `json_object` or `json_schema`")


def _reasoning(reasoning: Json, lost: list[str]) -> Json:
    """No engine summarises: the client is given the reasoning itself."""
    effort = reasoning.get("effort")
    if effort in _EFFORTS:
        return {"reasoning_effort": effort}
    if effort is not None:
        note(lost, f"reasoning_effort_left_out:{effort}")
    return {}
