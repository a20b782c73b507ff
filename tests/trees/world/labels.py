"""What harnesses say about themselves in headers, as the log keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Headers(Enum):
    NONE = "none"
    CLAUDE = "claude-code"
    CODEX = "codex"
    OPENCODE = "opencode"


class Who(NamedTuple):
    """An agent as its harness names it."""

    name: str
    parent: str | None
    depth: int
    window: int
    """How often its history began anew."""


@dataclass(slots=True)
class Labels:
    session_id: str | None = None
    agent_id: str | None = None
    parent_agent_id: str | None = None
    hints: dict[str, str] = field(default_factory=dict)


def labels_of(headers: Headers, who: Who, kind: str = "turn") -> Labels:
    """`kind`: `turn`, `compaction` or `side`."""
    match headers:
        case Headers.CLAUDE:
            return _claude(who)
        case Headers.CODEX:
            return _codex(who, "compaction" if kind == "compaction" else "turn")
        case Headers.OPENCODE:
            return Labels(f"ses_{who.name}", None, f"ses_{who.parent}" if who.parent else None)
        case Headers.NONE:
            return Labels()


def _claude(who: Who) -> Labels:
    """The main agent has no id, and a parent is named from the second level on."""
    agent = who.name if who.depth else None
    return Labels("session-1", agent, who.parent if who.depth > 1 else None)


def _codex(who: Who, kind: str) -> Labels:
    metadata = {
        "request_kind": kind,
        "window_number": who.window,
        "thread_id": who.name,
        "session_id": "main",
    }
    hints = {
        "x-codex-turn-metadata": json.dumps(metadata),
        "x-codex-window-id": f"{who.name}:{who.window}",
        "x-client-request-id": who.name,
    }
    if who.parent:
        hints["x-openai-subagent"] = "collab_spawn"
    return Labels("main", who.name, who.parent, hints)
