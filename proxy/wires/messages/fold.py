"""System messages in mid-conversation, for templates that allow only one, at the beginning.

Claude Code sends them with almost every turn. Merging them into the system prompt would change the head of
every prompt, so that no two calls share a prefix. They are folded where they stand: onto the user message
or tool result before them, else into a user message of their own. A call and its result are not parted.
Since a message only ever grows while it is the last, each prompt still extends the one before. Flagged
`system_folded`.
"""

from __future__ import annotations

from gyre.proxy.wires.messages.lost import Lost
from gyre.proxy.wires.translation import Json

_GAP = "\n\n"


def fold_system(messages: list[Json], lost: Lost) -> list[Json]:
    """The same conversation with system messages only at its beginning, as one."""
    folded: list[Json] = []
    held: list[str] = []
    for message in messages:
        if message["role"] == "system" and folded:
            lost.add("system_folded")
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
    return [*folded, {"role": "user", "content": _GAP.join(held)}] if held else folded


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
