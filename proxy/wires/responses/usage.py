"""Token counts in the words of Responses."""

from __future__ import annotations

from typing import Any

from gyre.proxy.wires.translation import Json


def usage_of(usage: Json | None) -> Json | None:
    """chat's usage; counts that the engine does not tell are 0, as the wire has no other word."""
    if not isinstance(usage, dict):
        return None
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    before, after = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": _count(before, "cached_tokens"), "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": _count(after, "reasoning_tokens")},
        "total_tokens": _count(usage, "total_tokens") or prompt + output,
    }


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if type(value) is int else 0
