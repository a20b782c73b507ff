"""A request body without the parts that the log keeps elsewhere.

In the envelope a marker, a JSON string at the top level, stands for each part that was cut out:

    "gyre:messages:<sep>"    the array of messages, joined with <sep>, which is `,` or `, `
    "gyre:tools:<sep>"       the array of tools
    "gyre:system"            `system` or `instructions`: the first entry of the message list, unwrapped
    "gyre:input"             an `input` that is one text: the last entry, likewise
    "gyre:prompt"            the prompt text of /completions: the message list's entries, one after another
    "gyre:prompt_ids:<sep>"  a prompt given as a list of token ids

A body that contains a marker of its own, or that is not given back byte for byte, is stored raw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKER = re.compile(rb'"gyre:(?:(messages|tools|prompt_ids):(, ?)|(prompt|system|input))"')
SYSTEM = b'{"role":"system","content":'
USER = b'{"role":"user","content":'
"""How a text that stands outside the message list is made a message of it; `}` ends it."""


def wrapped(start: bytes, value: bytes) -> bytes:
    """An entry of the message list for a value that has no role of its own."""
    return start + value + b"}"


def restore(
    envelope: bytes, messages: Sequence[bytes], tools: Sequence[bytes], prompt_ids: Sequence[int] | None
) -> bytes:
    """The request body as the client sent it. Only the envelope is searched, never the parts."""
    system = b'"gyre:system"' in envelope
    listed = messages[1:] if system else messages

    def part(match: re.Match[bytes]) -> bytes:
        name, separator, alone = match.groups()
        if alone == b"prompt":
            return b"".join(messages)
        if alone == b"system":
            return messages[0][len(SYSTEM) : -1]
        if alone == b"input":
            return messages[-1][len(USER) : -1]
        if name == b"prompt_ids":
            items: Sequence[bytes] = [b"%d" % token for token in prompt_ids or ()]
        else:
            items = listed if name == b"messages" else tools
        return b"[" + separator.join(items) + b"]"

    return _MARKER.sub(part, envelope)
