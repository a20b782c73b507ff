"""Entry of the Messages wire: a request becomes chat/completions, its answer comes back as Messages."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.proxy.wires.messages.lost import Lost
from gyre.proxy.wires.messages.request import chat_request
from gyre.proxy.wires.messages.writer import MessagesWriter
from gyre.proxy.wires.translation import Dialect, Json


@dataclass(slots=True)
class MessagesTranslation:
    """A `Translation`."""

    chat: Json
    lost: list[str]
    call_id: str
    model: str

    def writer(self) -> MessagesWriter:
        return MessagesWriter(self.call_id, self.model)


def translate(body: Json, dialect: Dialect) -> MessagesTranslation:
    """Translate a request of `/v1/messages` or `/v1/messages/count_tokens`; `body` stays as it is.

    Raises:
        RequestError: 400 `invalid_request`, where the body is malformed or holds what cannot be carried; it
            names the place.
    """
    lost = Lost()
    chat = chat_request(body, dialect, lost)
    return MessagesTranslation(chat, lost.flags, dialect.call_id, chat.get("model", ""))
