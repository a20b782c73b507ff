"""The engine's own completions by conversation, so that the next prompt keeps their ids.

Text does not always encode to the ids it was decoded from; a prompt that is tokenised anew then no longer
extends what was sampled: the KV prefix is lost, and a trainer's prefix with it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyre.elastic.engine.text.conversation import Conversation, read_message
from gyre.elastic.engine.text.template import ChatTemplate
from gyre.proxy.errors import RequestError

_ENTRY_BYTES = 256
"""What an entry takes beside its ids: key, arrays, dictionary."""
_TRIES = 8
"""How many remembered turns are looked at, latest first, when the template does not show one as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    ids: list[int]
    """The prompt."""
    spliced_tokens: int
    """How many of its first ids are remembered, not encoded; 0: none was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    ids: NDArray[np.int32]
    """Prompt and output."""

    @property
    def size(self) -> int:
        return int(self.ids.nbytes) + _ENTRY_BYTES


class CompletionMemory:
    """Least recently used within `max_bytes`. Any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lock = Lock()

    def remember(
        self,
        conversation: Conversation,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        message: Mapping[str, Any],
    ) -> None:
        """Keep the ids of a completion that was returned as `message` (`Reply.message()`).

        Not for replies cut at a stop string, continued messages and prompts without a generation prompt:
        there the ids are not those of the turn that the client has.
        """
        *_, before = _keys(conversation)
        ids = np.fromiter((*prompt_ids, *output_ids), dtype=np.int32)
        self._put(_next_key(before, read_message(dict(message))), _Entry(ids=ids))

    def splice(self, conversation: Conversation, rendered: str, template: ChatTemplate) -> Splice:
        """Ids of `rendered`, the conversation's prompt, with the longest remembered beginning in place."""
        for count, entry in islice(self._remembered(conversation), _TRIES):
            rest = _after_turn(conversation.first(count), rendered, template, last_id=int(entry.ids[-1]))
            if rest is not None:
                ids = entry.ids.tolist()
                return Splice(ids=ids + rest, spliced_tokens=len(ids))
        return Splice(ids=template.encode(rendered), spliced_tokens=0)

    def _remembered(self, conversation: Conversation) -> Iterator[tuple[int, _Entry]]:
        """Beginnings that end in a completion of ours, the longest first."""
        keys = list(_keys(conversation))
        for count in range(len(conversation.messages), 0, -1):
            if conversation.messages[count - 1]["role"] == "assistant":
                entry = self._get(keys[count])
                if entry is not None:
                    yield count, entry

    def _get(self, key: bytes) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def _put(self, key: bytes, entry: _Entry) -> None:
        with self._lock:
            old = self._entries.pop(key, None)
            self._entries[key] = entry
            self._bytes += entry.size - (old.size if old else 0)
            while self._bytes > self._max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.size


def _after_turn(
    told: Conversation, rendered: str, template: ChatTemplate, *, last_id: int
) -> list[int] | None:
    """Ids of what `rendered` says after the last turn of `told`; None where that place is not certain.

    The turn ends with a marker, the text of an end token, and white space. An output that this token ended
    holds the marker already; after one that was cut off, the marker comes first.
    """
    at = _end_of_turn(told, rendered, template)
    if at is None:
        return None
    rest = template.encode(rendered[at:])
    if last_id not in template.end_texts:
        return rest
    return rest[1:] if rest[0] == last_id else None


def _end_of_turn(told: Conversation, rendered: str, template: ChatTemplate) -> int | None:
    """Where in `rendered` the marker stands that ends the last turn of `told`."""
    try:
        before = template.render(
            told.first(len(told.messages) - 1), add_generation_prompt=False, require_tools=False
        )
        turn = template.render(told, add_generation_prompt=False, require_tools=False)
    except RequestError:
        return None
    if not (rendered.startswith(turn) and turn.startswith(before)):
        return None
    last = turn[len(before) :].rstrip()
    marker = next((text for text in template.end_texts.values() if text and last.endswith(text)), None)
    return None if marker is None else len(before) + len(last) - len(marker)


def _keys(conversation: Conversation) -> Iterator[bytes]:
    """A key for the conversation before its first message, and one after each."""
    key = _digest(b"", [list(conversation.tools), dict(conversation.kwargs)])
    yield key
    for message in conversation.messages:
        key = _next_key(key, message)
        yield key


def _next_key(key: bytes, message: Mapping[str, Any]) -> bytes:
    """Ids of calls do not count: they are labels, which some clients choose anew."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    said = [message.get(part) for part in ("role", "name", "content", "reasoning_content")]
    return _digest(key, [*said, calls])


def _digest(key: bytes, value: object) -> bytes:
    text = json.dumps(_plain_numbers(value), sort_keys=True)
    return blake2b(key + text.encode(), digest_size=16).digest()


def _plain_numbers(value: object) -> object:
    """1.0 is 1, which is how JavaScript's clients send it back."""
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
