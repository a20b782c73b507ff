"""What a log says of executions, for a proxy that starts on it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from gyre.proxy.allowance import Allowance
from gyre.proxy.calls import ExecutionRecord
from gyre.proxy.commands import Command, EndExecution, PutExecution, StartExecution
from gyre.proxy.executions import MOST, ExecutionEvent
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.reading.sealed import list_sealed, projected, row_groups
from gyre.proxy.settings import Pin

_ENDS = frozenset((ExecutionEvent.ENDED, ExecutionEvent.TIMED_OUT))
_PUTS = frozenset((ExecutionEvent.STARTED, ExecutionEvent.UPDATED))
_COLUMNS = ["execution_id", "execution_attempt", "event", "order", "task", "group", "evaluation", "details"]


class _Details(msgspec.Struct):
    """Of `started` and `updated`."""

    pin: Pin | None = None
    restore_arguments: bool | None = None
    limits: Allowance | None = None


@dataclass(slots=True)
class _Known:
    """One execution."""

    ends: int = 0
    begun: int = 0
    puts: list[tuple[int, PutExecution]] = field(default_factory=list)
    """With their orders; of an attempt that has not ended."""


def commands_before(folder: Folder) -> list[Command]:
    """What earlier proxies were told, of the newest 100,000 names.

    Each goes on with its next attempt; one that has not ended keeps what was put of it.
    """
    known: dict[str, _Known] = {}
    for row in _events(folder):
        name, attempt = row["execution_id"], row["execution_attempt"]
        one = known[name] = known.pop(name, _Known())
        if row["event"] in _ENDS:
            one.ends = max(one.ends, attempt + 1)
        elif attempt >= one.ends:
            one.begun = max(one.begun, attempt + 1)
            one.puts.append((row["order"], _put(row)))
    return [command for name in list(known)[-MOST:] for command in _commands(name, known[name])]


def _commands(name: str, known: _Known) -> Iterator[Command]:
    if known.ends:
        yield EndExecution(name, known.ends)
    if known.begun > known.ends:
        yield from (put for _, put in sorted(known.puts, key=lambda each: each[0]))
    if known.begun > known.ends > 0:
        yield StartExecution(name, known.begun)


def _put(row: Mapping[str, Any]) -> PutExecution:
    try:
        said = msgspec.json.decode(row["details"] or b"{}", type=_Details)
    except msgspec.DecodeError:
        said = _Details()  # not of ours
    about = row["task"], row["group"], row["evaluation"]
    return PutExecution(row["execution_id"], *about, said.pin, said.restore_arguments, said.limits)


def _events(folder: Folder) -> Iterator[Mapping[str, Any]]:
    """Of each segment in its order."""
    sealed, wanted = list_sealed(folder), _ENDS | _PUTS
    schema = projected("executions", _COLUMNS)
    for file in sealed.executions:
        try:
            for group in row_groups(file, schema, ("event", wanted)):
                yield from group.to_pylist()
        except (OSError, pa.ArrowException):
            # A damaged file is for `gyre log check` to report; it must not keep the proxy down.
            continue
    for segment in folder.segments():
        for record in scan(segment, Damage()) if segment.name not in sealed.segments else ():
            if isinstance(record, ExecutionRecord) and record.event in wanted:
                yield {name: getattr(record, name) for name in _COLUMNS}
