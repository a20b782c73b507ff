"""What the harness itself says of its agents, from recorded headers. Pure.

Claude Code: one session id, an agent id on sub-agents only, a parent from the second level on. Codex: a
thread per agent, the session being the first thread. OpenCode: a session per agent. None of it is
needed; where it is there, it is held against what the ids say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from gyre.treebuilder.lineage.turn import Try, Voice

_CODEX = "x-codex-turn-metadata"


class Labels:
    def __init__(self, tries: Iterable[Try]) -> None:
        self.problems: list[str] = []
        self._parents: dict[Voice, Voice] = {}
        for one in tries:
            parent = _parent(one)
            if parent is None or parent == one.voice:
                continue
            if self._parents.setdefault(one.voice, parent) != parent:
                self.problems.append(f"headers give agent {_name(one.voice)} more than one parent")
        self._break_cycles()

    def parent(self, voice: Voice) -> Voice | None:
        """The agent that started this one."""
        return self._parents.get(voice)

    def is_summary(self, one: Try) -> bool:
        """Whether the harness calls this a compaction request."""
        return _metadata(one).get("request_kind") == "compaction"

    def window(self, one: Try) -> int | None:
        """Codex counts the histories of a thread."""
        number = _metadata(one).get("window_number")
        return number if isinstance(number, int) else None

    def _break_cycles(self) -> None:
        for voice in list(self._parents):
            seen = {voice}
            above = self._parents.get(voice)
            while above is not None and above not in seen:
                seen.add(above)
                above = self._parents.get(above)
            if above is not None:
                self.problems.append(f"headers form a cycle of parents at agent {_name(above)}")
                for member in seen:
                    self._parents.pop(member, None)


def is_labelled(voice: Voice) -> bool:
    return voice != (None, None)


def _parent(one: Try) -> Voice | None:
    call = one.call
    if call.agent_id is None:
        return (call.parent_agent_id, None) if call.parent_agent_id else None
    if call.parent_agent_id:
        return call.session_id, call.parent_agent_id
    return None if call.agent_id == call.session_id else (call.session_id, None)


def _metadata(one: Try) -> dict[str, Any]:
    text = one.call.hints.get(_CODEX)
    if text is None:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _name(voice: Voice) -> str:
    return f"`{voice[1] or voice[0]}`"
