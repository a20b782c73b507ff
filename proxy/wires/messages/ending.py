"""How an answer ended and what it cost, in the words of Messages. Pure."""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.messages.blocks import Block
from gyre.proxy.wires.translation import Ending, Json


def stop_reason(ending: Ending, calls: list[Block], refused: bool) -> tuple[str | None, str | None]:
    """`stop_reason` and `stop_sequence`.

    `length` is always `max_tokens`. Calls that are whole make it `tool_use` also where the engine says
    `stop`; a call that a stop string cut short must not run. What Messages has no word for (`abort`, an
    engine's own words, nothing) is null: `end_turn` would tell the client that the model was done.
    """
    match ending.reason:
        case "length":
            return "max_tokens", None
        case "content_filter":
            return "refusal", None
        case "tool_calls" | "function_call":
            return "tool_use", None
        case "stop" if ending.matched is not None and not (calls and calls[-1].over):
            return "stop_sequence", ending.matched
        case "stop" if calls:
            return "tool_use", None
        case "stop":
            return ("refusal" if refused else "end_turn"), None
    return None, None


def usage_of(usage: Json | None, prompt_tokens: int | None) -> Json:
    """Tokens as Messages counts them: `input_tokens` without those that came from the engine's cache.

    Required counts that nobody told are 0; `cache_read_input_tokens` is there only where the engine says it.
    """
    said = usage or {}
    details = said.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    prompt = _count(said.get("prompt_tokens"))
    total = prompt if prompt is not None else prompt_tokens or 0
    counts = {"input_tokens": max(total - (cached or 0), 0)}
    if cached is not None:
        counts["cache_read_input_tokens"] = cached
    return {**counts, "output_tokens": _count(said.get("completion_tokens")) or 0}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
