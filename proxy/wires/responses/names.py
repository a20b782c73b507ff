"""Names of tools as the engine knows them, and ids of what the writer makes."""

from __future__ import annotations

import re

BUILT_IN = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Calls of OpenAI's tools that the client runs: name of the tool, field of the item with its arguments."""
_OURS = re.compile(r"(?:msg|rs|fc|ctc|tsc)_(.+)_[0-9]+")


def flat_name(namespace: object, name: object) -> str:
    """A tool's name for chat/completions, which has no namespaces. Nothing else in a request changes it."""
    return f"{namespace}__{name}" if namespace else f"{name}"


def item_id(prefix: str, call_id: str, index: int) -> str:
    return f"{prefix}_{call_id}_{index}"


def answer_of(ident: object) -> str | None:
    """The call whose answer an item was part of, where its id is one that `item_id` made."""
    found = _OURS.fullmatch(ident) if isinstance(ident, str) else None
    return found[1] if found else None
