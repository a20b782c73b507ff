"""Scores into a log, whether a proxy writes it or not.

A proxy that knows the execution is asked, so that its status shows task and group. Otherwise the events
go into a journal segment of our own, as any worker's would: locked while it is written, on the disk when
we say so, sealed with the others. Names are checked first, so a misspelt one writes nothing.
"""

from __future__ import annotations

import difflib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from gyre.proxy.calls import ExecutionRecord
from gyre.proxy.errors import LogError, ScoreError
from gyre.proxy.executions import ExecutionEvent
from gyre.proxy.log.append import append_events
from gyre.proxy.log.folder import Folder, create_folder, open_folder
from gyre.proxy.log.live import ask_proxy
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.record.journal import Opener, open_new
from gyre.proxy.scores import Scored

_MOST = 10_000
"""Executions that a proxy is asked for; of others it is not told, which loses nothing."""


class Written(NamedTuple):
    """Where a score went."""

    execution_id: str
    attempt: int
    by: str
    """`proxy` or `command`"""


class _Seen(NamedTuple):
    """What a log has of one execution."""

    attempt: int
    """The last one."""
    order: int
    """Of its last row."""


def write_scores(path: str | Path, scores: Sequence[Scored], *, opener: Opener = open_new) -> list[Written]:
    """Record `scores`; they are on the disk, or with the proxy that writes the log, when this returns.

    Raises:
        ScoreError: the log has no such execution or attempt; nothing is written.
        LogError: the log cannot be written.
        UpstreamError: a proxy writes the log and refuses.
    """
    folder = open_folder(path)
    running = _running(folder, [scored.execution_id for scored in scores])
    theirs = [scored for scored in scores if _is_with(running, scored)]
    mine = [scored for scored in scores if not _is_with(running, scored)]
    seen = _require_known(path, mine)
    records = _records(mine, seen)
    if records:
        append_events(create_folder(path), records, opener)
    own = [Written(record.execution_id, record.execution_attempt, "command") for record in records]
    return own + [_tell(folder, scored) for scored in theirs]


def _running(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """Executions that a proxy which writes this log knows, each with its attempt."""
    begin = quote(names[0]) if len(names) == 1 else ""
    answer = ask_proxy(folder, f"/gyre/v1/executions?limit={_MOST}&prefix={begin}", method="GET")
    return {known["name"]: known["attempt"] for known in answer["executions"]} if answer else {}


def _is_with(running: Mapping[str, int], scored: Scored) -> bool:
    """Whether the proxy would take it for the attempt that is meant."""
    return scored.execution_id in running and scored.attempt in (None, running[scored.execution_id])


def _tell(folder: Folder, scored: Scored) -> Written:
    belongs = _given(task=scored.task, group=scored.group)
    said = _given(score=scored.score, outcome=scored.outcome, artifact=scored.artifact, reason=scored.reason)
    answer: dict[str, Any] | None = None
    if belongs:
        answer = ask_proxy(folder, _route(scored), belongs, method="PUT")
    if scored.score is not None or scored.outcome is not None:
        answer = ask_proxy(folder, f"{_route(scored)}/events", {"event": ExecutionEvent.SCORED, **said})
    if answer is None:
        raise LogError(f"the proxy ended before it took the score of `{scored.execution_id}`", "try again")
    return Written(scored.execution_id, answer["attempt"], "proxy")


def _route(scored: Scored) -> str:
    return f"/gyre/v1/executions/{quote(scored.execution_id, safe='')}"


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _require_known(path: str | Path, scores: Sequence[Scored]) -> dict[str, _Seen]:
    seen = _seen(path, {scored.execution_id for scored in scores}) if scores else {}
    for scored in scores:
        name = scored.execution_id
        if name not in seen:
            raise ScoreError(f"no execution `{name}` in `{path}`", _nearest(name, path))
        last = seen[name].attempt
        if scored.attempt is not None and scored.attempt > last:
            raise ScoreError(f"`{name}` has no attempt {scored.attempt} in `{path}`", f"its last is {last}")
    return seen


def _nearest(name: str, path: str | Path) -> str:
    near = difflib.get_close_matches(name, _seen(path, None), 1)
    return f"did you mean `{near[0]}`?" if near else "`gyre log calls` shows the executions that it has"


def _seen(path: str | Path, names: set[str] | None) -> dict[str, _Seen]:
    columns = ["execution_id", "execution_attempt", "order"]
    log = read_log(path, executions=names, columns=columns)
    rows = pa.concat_tables([log.calls, log.executions.select(columns)])
    found = rows.group_by("execution_id").aggregate([("execution_attempt", "max"), ("order", "max")])
    values = [values_of(found[name]) for name in ("execution_id", "execution_attempt_max", "order_max")]
    return {name: _Seen(attempt, order) for name, attempt, order in zip(*values, strict=True)}


def _records(scores: Sequence[Scored], seen: dict[str, _Seen]) -> list[ExecutionRecord]:
    """Events that stand after all that the log has of their executions, also when clocks ran back."""
    now, worker = time.time_ns(), secrets.token_hex(4)
    first = max([now, *(seen[scored.execution_id].order + 1 for scored in scores)])
    return [
        ExecutionRecord(
            order=first + number,
            worker=worker,
            execution_id=scored.execution_id,
            execution_attempt=seen[scored.execution_id].attempt if scored.attempt is None else scored.attempt,
            event=_event(scored).value,
            at_ns=now,
            outcome=scored.outcome,
            task=scored.task,
            group=scored.group,
            score=scored.score,
            artifact=scored.artifact,
            reason=scored.reason,
        )
        for number, scored in enumerate(scores)
    ]


def _event(scored: Scored) -> ExecutionEvent:
    nothing = scored.score is None and scored.outcome is None
    return ExecutionEvent.UPDATED if nothing else ExecutionEvent.SCORED
