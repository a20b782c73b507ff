"""System messages in mid-conversation, for templates that allow only one, at the beginning.

Claude Code sends them with almost every turn. Merging them into the system prompt would change the head of
every prompt, so that no two calls share a prefix. They are folded where they stand: onto the user message
or tool result before them, else into a user message of their own. A call and its result are not parted.
Since a message only ever grows while it is the last, each prompt still extends the one before. Rows
say `system_folded`.
"""

from __future__ import annotations

from gyre.proxy.wires.translation import Json

_GAP = "\n\n"


def fold_system(messages: list[Json]) -> tuple[list[Json], bool]:
    """The same with system messages only at its beginning, as one; and whether any was folded."""
    folded: list[Json] = []
    held: list[str] = []
    changed = False
    for message in messages:
        if message["role"] == "system" and folded:
            changed = True
            if not isinstance(message["content"], str):
                folded.append({**message, "role": "user"})
                continue
            _take(folded, held, message["content"])
            continue
        if held and message["role"] == "user":
            message = _joined(message, _GAP.join(held), in_front=True)
            held = []
        elif held and message["role"] == "assistant":
            folded.append({"role": "user", "content": _GAP.join(held)})
            held = []
        folded.append(message)
        if held and message["role"] == "tool":
            folded[-1] = _joined(message, _GAP.join(held))
            held = []
    if held:
        folded.append({"role": "user", "content": _GAP.join(held)})
    return folded, changed


def _take(folded: list[Json], held: list[str], text: str) -> None:
    """Fold one text onto what is before it, or hold it until something comes after it."""
    if folded[-1]["role"] == "assistant":
        held.append(text)
    else:
        folded[-1] = _joined(folded[-1], text)


def _joined(message: Json, text: str, in_front: bool = False) -> Json:
    content = message["content"]
    if isinstance(content, str):
        pair = (text, content) if in_front else (content, text)
        return {**message, "content": _GAP.join(part for part in pair if part)}
    part = {"type": "text", "text": text}
    return {**message, "content": [part, *content] if in_front else [*content, part]}
