"""Messages and Responses side by side: which module does what for a wire."""

from __future__ import annotations

from gyre.proxy.calls import Wire
from gyre.proxy.wires.fold import fold_system
from gyre.proxy.wires.messages import assembly as messages_assembly
from gyre.proxy.wires.messages import errors as messages_errors
from gyre.proxy.wires.messages import translate as messages
from gyre.proxy.wires.responses import assembly as responses_assembly
from gyre.proxy.wires.responses import errors as responses_errors
from gyre.proxy.wires.responses import translate as responses
from gyre.proxy.wires.translation import Assembly, Dialect, Json, Translation

TRANSLATED = frozenset((Wire.MESSAGES, Wire.RESPONSES))
"""Wires on which no engine gives token ids."""


def translate(wire: Wire, body: Json, dialect: Dialect) -> Translation:
    """A request of `wire` as chat/completions.

    Raises:
        RequestError: status 400, naming the place of what cannot be carried.
    """
    module = responses if wire == Wire.RESPONSES else messages
    translation: Translation = module.translate(body, dialect)
    if dialect.fold_system:
        translation.chat["messages"], folded = fold_system(translation.chat["messages"])
        translation.lost += ["system_folded"] if folded else []
    return translation


def assembly_of(wire: Wire) -> Assembly:
    """A reader for a native stream."""
    if wire == Wire.RESPONSES:
        return responses_assembly.ResponsesAssembly()
    return messages_assembly.MessagesAssembly()


def read_plain(wire: Wire, answer: Json) -> Assembly:
    """A plain answer, read to its end."""
    if wire == Wire.RESPONSES:
        return responses_assembly.read_plain(answer)
    return messages_assembly.read_plain(answer)


def error_body(wire: Wire, status: int, message: str, code: str) -> bytes:
    """An error in the wire's own plain form; other wires have OpenAI's."""
    if wire in (Wire.MESSAGES, Wire.COUNT_TOKENS):
        return messages_errors.error_body(status, message, code)
    return responses_errors.error_body(status, message, code)
