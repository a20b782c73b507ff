"""Arguments of tool calls as the model wrote them.

Harnesses parse them and write them anew, and Messages has them as an object: blanks and escapes change,
and with them the tokens. By the call's id the sampled text is put back, where it means the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from gyre.proxy.arguments import same_arguments
from gyre.proxy.errors import LogError
from gyre.proxy.log.reading.read import read_log

logger = logging.getLogger(__name__)
_MOST_BYTES = 64 << 20
_MOST_TEXTS = 256
"""Of calls with one id."""
_SHARE = 3.0
"""For one execution the log is read during at most a third of the time."""


class _Function(msgspec.Struct):
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    tool_calls: list[_ToolCall] | None = None


_decode_message = msgspec.json.Decoder(_Message).decode


def arguments_in(message: bytes | None) -> list[tuple[str, str]]:
    """Tool-call id and arguments of each call in a chat message, JSON."""
    if message is None or b'"tool_calls"' not in message:
        return []
    try:
        calls = _decode_message(message).tool_calls
    except msgspec.DecodeError:
        return []
    said = ((call.id, call.function.arguments) for call in calls or () if call.function)
    return [(ident, text) for ident, text in said if ident and text]


class Sampled:
    """What one worker has seen, at most 64 MB of it; other workers' and earlier proxies' is in the log."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._texts: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()
        """The latest first. Nothing for a call that the log does not know either: the harness made it up."""
        self._bytes = 0
        self._not_before: dict[str, float] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    def learn(self, execution: str, message: bytes | None) -> None:
        for ident, text in arguments_in(message):
            self._put((execution, ident), text)

    def of(self, execution: str) -> SampledOf:
        return SampledOf(self, execution)

    def get(self, execution: str, ident: str) -> tuple[str, ...] | None:
        """Texts of the calls with that id; None when it has not been looked for in the log."""
        key = execution, ident
        if key not in self._texts:
            return None
        self._texts.move_to_end(key)
        return self._texts[key]

    async def read_log(self, execution: str, missed: Iterable[str]) -> bool:
        """Look in the log for calls that are not known here; False when that was done just now.

        Calls that ask at the same time share one look.
        """
        if execution not in self._reading:
            if time.monotonic() < self._not_before.get(execution, 0.0):
                return False
            self._reading[execution] = asyncio.create_task(self._read(execution))
        await asyncio.shield(self._reading[execution])
        for ident in missed:
            self._texts.setdefault((execution, ident), ())
        return True

    async def _read(self, execution: str) -> None:
        since = time.monotonic()
        try:
            found = await asyncio.to_thread(_from_log, self._logs, execution)
        finally:
            del self._reading[execution]
            if len(self._not_before) > 10_000:
                self._not_before.clear()
            self._not_before[execution] = since + _SHARE * (time.monotonic() - since)
        for ident, texts in found.items():
            for text in reversed(texts):
                self._put((execution, ident), text)

    def _put(self, key: tuple[str, str], text: str) -> None:
        known = self._texts.pop(key, ())
        kept = (text, *(other for other in known if other != text))[:_MOST_TEXTS]
        self._bytes += sum(map(len, kept)) - sum(map(len, known))
        self._texts[key] = kept
        while self._bytes > _MOST_BYTES or len(self._texts) > 1_000_000:
            _, oldest = self._texts.popitem(last=False)
            self._bytes -= sum(map(len, oldest))


class SampledOf:
    """The tool calls of one execution; remembers which were asked for in vain."""

    def __init__(self, memory: Sampled, execution: str) -> None:
        self._memory = memory
        self._execution = execution
        self.missed: list[str] = []

    def __call__(self, ident: str) -> tuple[str, ...]:
        texts = self._memory.get(self._execution, ident)
        if texts is None:
            self.missed.append(ident)
        return texts or ()


def _from_log(logs: Path, execution: str) -> dict[str, list[str]]:
    try:
        log = read_log(logs, executions=[execution], columns=["response"])
        return arguments_of(log.calls["response"].to_pylist())
    except (LogError, OSError, pa.ArrowException) as error:
        # The call can go on without; what is missing is flagged.
        logger.warning("arguments of `%s` cannot be read from the log: %s", execution, error)
        return {}


def arguments_of(responses: Iterable[str | None]) -> dict[str, list[str]]:
    """Arguments by tool-call id in answers of chat/completions, the latest first."""
    found: dict[str, list[str]] = {}
    for response in responses:
        for ident, text in arguments_in(None if response is None else response.encode()):
            found.setdefault(ident, []).insert(0, text)
    return found


def restored(messages: Any, sampled: Callable[[str], Sequence[str]]) -> list[Any] | None:
    """Chat messages with arguments as they were sampled; None when all of them are."""
    if not isinstance(messages, list):
        return None
    calls = [call for message in messages for call in _calls_in(message)]
    # All of them: each one changes its own call.
    changes = [_restore(call, sampled) for call in calls]
    return messages if any(changes) else None


def _calls_in(message: Any) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return calls if isinstance(calls, list) else []


def _restore(call: Any, sampled: Callable[[str], Sequence[str]]) -> bool:
    """Change one tool call in place; False when there is nothing to change."""
    function = call.get("function") if isinstance(call, Mapping) else None
    ident = call.get("id") if isinstance(call, Mapping) else None
    if not isinstance(function, dict) or not isinstance(ident, str):
        return False
    said, texts = function.get("arguments"), sampled(ident)
    if not isinstance(said, str) or said in texts:
        return False
    text = next((text for text in texts if same_arguments(said, text)), None)
    function["arguments"] = said if text is None else text
    return text is not None
