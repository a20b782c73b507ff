"""ENTRY: a Responses request as chat/completions, and a writer that brings the answer back.

Only calls whose token ids are wanted come here; others pass untouched and are only read
(`assembly.py`). What is carried how is in docs/wires.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.proxy.wires.responses.choice import calling
from gyre.proxy.wires.responses.items import Reader
from gyre.proxy.wires.responses.request import (
    ENCRYPTED,
    echo,
    included,
    instructions_of,
    refuse_state,
    settings,
)
from gyre.proxy.wires.responses.tools import Tools
from gyre.proxy.wires.responses.writer import ResponsesWriter
from gyre.proxy.wires.translation import Dialect, Json


@dataclass(slots=True)
class Translated:
    chat: Json
    lost: list[str]
    body: Json
    tools: Tools
    dialect: Dialect

    def writer(self) -> ResponsesWriter:
        sealed = ENCRYPTED in included(self.body)
        return ResponsesWriter(echo(self.body), self.tools, self.dialect, sealed)


def translate(body: Json, dialect: Dialect) -> Translated:
    """A request as chat/completions.

    Raises:
        RequestError: status 400; it is malformed, or needs a server that keeps responses.
    """
    refuse_state(body)
    lost: list[str] = []
    tools = Tools(lost)
    if body.get("tools") is not None:
        tools.declare(body["tools"], "tools")
    messages = Reader(tools, dialect, lost).messages(instructions_of(body), body.get("input"))
    fields = settings(body, lost)
    chat = {"model": fields.pop("model"), "messages": messages, **calling(body, tools), **fields}
    return Translated(chat, lost, body, tools, dialect)
