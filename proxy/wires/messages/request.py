"""A Messages request as a chat/completions request, field by field.

- `max_tokens`, `temperature`, `top_p`, `top_k`: the same. `stop_sequences`: `stop`. Fields that engines add
  to the wire themselves (`chat_template_kwargs`, `min_p`, `seed`, ...) pass.
- `thinking` becomes what templates of open models understand, `chat_template_kwargs.enable_thinking`: true
  when enabled, false when disabled, not set when `adaptive` or absent, for then the model decides. What a
  client sets there itself wins. A budget is not enforced (`thinking_budget_left_out`): engines would cut
  the thought off with tokens that were not sampled. `display` is ignored: thoughts always come back, since
  the next prompt needs them.
- `output_config.effort` becomes `reasoning_effort`, unless thinking is disabled. `output_config.format` and
  its older name `output_format` become `response_format`.
- A conversation that ends with an assistant message is one to be continued: `continue_final_message`.
- `metadata`, `betas`, `service_tier`, `cache_control` and the like are about the transport: dropped.
  `context_management` asks the server to edit the prompt: dropped where it asks for what happens anyway
  (all thinking kept), flagged `context_edit_left_out:<type>` otherwise. Any other field is flagged
  `field_left_out:<name>`.
"""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.messages.history import chat_messages
from gyre.proxy.wires.messages.lost import Lost, list_at, object_at, refusal, text_at
from gyre.proxy.wires.messages.tools import tool_fields
from gyre.proxy.wires.translation import Dialect, Json

_SAME = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")
_ENGINES = ("cache_salt", "kv_transfer_params", "vllm_xargs")
_TRANSPORT = {
    "metadata",
    "betas",
    "anthropic_beta",
    "service_tier",
    "inference_geo",
    "speed",
    "diagnostics",
    "cache_control",
    "user_profile_id",
    "workspace_id",
    "billing_policy",
    "fallbacks",
    "fallback_credit_token",
}
_READ = {
    "model",
    "system",
    "messages",
    "tools",
    "tool_choice",
    "stop_sequences",
    "stream",
    "thinking",
    "output_config",
    "output_format",
    "context_management",
    "chat_template_kwargs",
    *_SAME,
    *_ENGINES,
}


def chat_request(body: Json, dialect: Dialect, lost: Lost) -> Json:
    """The request for the engine.

    Raises:
        RequestError: something in the body is malformed or cannot be carried; names the place.
    """
    messages = chat_messages(body, dialect, lost)
    chat: Json = {"model": text_at(body["model"], "model")} if body.get("model") is not None else {}
    chat["messages"] = messages
    chat |= _prefill(body["messages"], messages)
    chat |= {key: body[key] for key in (*_SAME, *_ENGINES) if body.get(key) is not None}
    if body.get("stop_sequences"):
        chat["stop"] = list_at(body["stop_sequences"], "stop_sequences")
    chat |= tool_fields(body, lost)
    chat |= _thinking(body, lost)
    chat |= _format(body)
    chat |= _stream(body)
    _note_left_out(body, lost)
    return chat


def _prefill(said: list[Any], messages: list[Json]) -> Json:
    """What makes the engine go on with the last message; an empty one is no beginning and is taken away."""
    if said[-1]["role"] != "assistant":
        return {}
    place, last = f"messages[{len(said) - 1}]", messages[-1]
    if last.get("tool_calls"):
        raise refusal(place, "ends with a tool call, so a message with its result must follow")
    if last["content"]:
        return {"continue_final_message": True, "add_generation_prompt": False}
    if last.keys() - {"role", "content"}:
        raise refusal(place, "ends with thinking, which cannot be continued")
    messages.pop()
    return {}


def _thinking(body: Json, lost: Lost) -> Json:
    fields: Json = {}
    template = object_at(body.get("chat_template_kwargs") or {}, "chat_template_kwargs")
    effort = object_at(body.get("output_config") or {}, "output_config").get("effort")
    thinking = object_at(body.get("thinking") or {}, "thinking")
    match thinking.get("type"):
        case "enabled":
            template = {"enable_thinking": True, **template}
        case "disabled":
            template = {"enable_thinking": False, **template}
            effort = None
        case None | "adaptive":
            pass
        case other:
            lost.add(f"thinking_left_out:{other}")
    if thinking.get("budget_tokens") is not None:
        lost.add("thinking_budget_left_out")
    if effort is not None:
        fields["reasoning_effort"] = effort
    return fields | ({"chat_template_kwargs": template} if template else {})


def _format(body: Json) -> Json:
    config = object_at(body.get("output_config") or {}, "output_config")
    place = "output_format" if body.get("output_format") else "output_config.format"
    given = body.get("output_format") or config.get("format")
    if given is None:
        return {}
    form = object_at(given, place)
    if form.get("type") != "json_schema":
        raise refusal(place, f"of type `{form.get('type')}` cannot be carried", "use `json_schema`")
    schema = object_at(form.get("schema"), f"{place}.schema")
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "json_schema", "schema": schema}}
    }


def _stream(body: Json) -> Json:
    if body.get("stream") is True:
        return {"stream": True, "stream_options": {"include_usage": True}}
    return {"stream": False} if "stream" in body else {}


def _note_left_out(body: Json, lost: Lost) -> None:
    for key in sorted(body.keys() - _READ - _TRANSPORT):
        lost.add(f"field_left_out:{key}")
    for key in sorted((body.get("output_config") or {}).keys() - {"effort", "format"}):
        lost.add(f"field_left_out:output_config.{key}")
    management = object_at(body.get("context_management") or {}, "context_management")
    for edit in list_at(management.get("edits") or [], "context_management.edits"):
        kind = object_at(edit, "context_management.edits").get("type")
        if not (str(kind).startswith("clear_thinking") and edit.get("keep") in ("all", {"type": "all"})):
            lost.add(f"context_edit_left_out:{kind}")
