"""What a chat prompt is made from: messages, tools and template arguments, checked and in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages as chat templates read them: content is text, arguments of calls are objects."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further template variables (`chat_template_kwargs`, `reasoning_effort`)."""

    def first(self, count: int) -> Conversation:
        """The same conversation after its first `count` messages."""
        return replace(self, messages=self.messages[:count])


def read_conversation(messages: object, tools: object = None, kwargs: object = None) -> Conversation:
    """Check the parts of a chat request (parsed JSON) and bring them into one form.

    RequestError 400 names the place, as `messages[3].content[1]`, and what is wrong with it.
    """
    raise NotImplementedError
