"""How often each execution of a log has ended, for a proxy that starts on it again."""

from __future__ import annotations

import pyarrow as pa

from gyre.proxy.calls import ExecutionRecord
from gyre.proxy.commands import EndExecution
from gyre.proxy.executions import MOST, ExecutionEvent
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.reading.sealed import list_sealed, projected, row_groups

_ENDS = (ExecutionEvent.ENDED, ExecutionEvent.TIMED_OUT)


def ended_before(folder: Folder) -> list[EndExecution]:
    """What earlier proxies recorded, the newest 100,000 names: each goes on with its next attempt."""
    ends: dict[str, int] = {}
    sealed = list_sealed(folder)
    schema = projected("executions", ["execution_id", "execution_attempt", "event"])
    for file in sealed.executions:
        try:
            for group in row_groups(file, schema, ("event", set(_ENDS))):
                for row in group.to_pylist():
                    _note(ends, row["execution_id"], row["execution_attempt"])
        except (OSError, pa.ArrowException):
            # A damaged file is for `gyre log check` to report; it must not keep the proxy down.
            continue
    for segment in folder.segments():
        for record in scan(segment, Damage()) if segment.name not in sealed.segments else ():
            if isinstance(record, ExecutionRecord) and record.event in _ENDS:
                _note(ends, record.execution_id, record.execution_attempt)
    return [EndExecution(name, count) for name, count in list(ends.items())[-MOST:]]


def _note(ends: dict[str, int], name: str, attempt: int) -> None:
    count = max(ends.pop(name, 0), attempt + 1)
    ends[name] = count
