"""The engine's own completions by conversation, so that the next prompt keeps their ids.

Text does not always encode to the ids it was decoded from; a prompt that is tokenised anew then no longer
extends what was sampled: the KV prefix is lost, and a trainer's prefix with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyre.elastic.engine.text.conversation import Conversation
from gyre.elastic.engine.text.template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    ids: list[int]
    """The prompt."""
    spliced_tokens: int
    """How many of its first ids are remembered, not encoded; 0: none was found."""


class CompletionMemory:
    """Least recently used within `max_bytes`. Any thread."""

    def __init__(self, max_bytes: int) -> None:
        raise NotImplementedError

    def remember(
        self,
        conversation: Conversation,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        message: Mapping[str, Any],
    ) -> None:
        """Keep the ids of a completion that was returned as `message` (`Reply.message()`).

        Not for texts cut at a stop string, nor for continued messages: there the text that the client has
        is not that of the ids.
        """
        raise NotImplementedError

    def splice(self, conversation: Conversation, rendered: str, template: ChatTemplate) -> Splice:
        """Ids of `rendered`, the conversation's prompt, with the longest remembered beginning in place."""
        raise NotImplementedError
