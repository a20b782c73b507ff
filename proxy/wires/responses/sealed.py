"""Reasoning that a client keeps for us.

Clients that keep no response on the server (`store: false`) ask for `reasoning.encrypted_content` and
send it back with the next call. Ours is no secret: it is the text itself, so that it comes back
verbatim also from clients that throw `content` away.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

_MARK = "gyre1."


def sealed(text: str) -> str:
    return _MARK + base64.b64encode(text.encode()).decode()


def opened(value: Any) -> str | None:
    """The text of what `sealed` made; None for what anybody else did."""
    if not isinstance(value, str) or not value.startswith(_MARK):
        return None
    try:
        return base64.b64decode(value[len(_MARK) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def reasoning_text(item: dict[str, Any]) -> str:
    """What a `reasoning` item says: its text, else what we sealed, else its summary."""
    if text := "".join(_texts(item.get("content"))):
        return text
    return opened(item.get("encrypted_content")) or "\n\n".join(_texts(item.get("summary")))


def _texts(parts: Any) -> list[str]:
    if isinstance(parts, str):
        return [parts]
    listed = parts if isinstance(parts, list) else ()
    return [part["text"] for part in listed if isinstance(part, dict) and isinstance(part.get("text"), str)]
