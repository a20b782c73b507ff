"""What the engine may use, and what it says of its use. Values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    ctx: int
    """Tokens of prompt and output together."""
    slots: int = 16
    """Sequences that are computed at the same time."""
    queue: int = 256
    """Sequences that may wait beside those that run."""
    kv_bytes: int = 2 << 30
    """Memory for keys and values, of running sequences and kept ones."""
    step_tokens: int = 256
    """Prompt tokens computed in a step beside the running answers."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """What only grows."""

    steps: int = 0
    computed_tokens: int = 0
    """Of prompts and outputs, those computed again included."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens: found instead of computed."""
    generated_tokens: int = 0
    preemptions: int = 0
    failures: int = 0
    publications: int = 0


@dataclass(slots=True, kw_only=True)
class EngineStats(Counters):
    """The counters, and the present."""

    running: int
    waiting: int
    kv_bytes: int
    """In use, kept conversations included."""
    kv_limit_bytes: int
    kept: int
    """Conversations that can be found again."""
