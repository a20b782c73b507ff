"""What the journal holds that is not sealed yet, and which attempts were never finished.

An intent becomes a row `interrupted` when every segment that holds it was left by a dead writer
without a CloseRecord (after which the writer repeats it in its next segment) and its attempt has no
row anywhere in the log. Intents of a live writer are attempts in flight: no rows, only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gyre.proxy.calls import CallRecord, CloseRecord, ExecutionRecord, IntentRecord, NewMessage, Record
from gyre.proxy.log.findings import Finding, error, note
from gyre.proxy.log.folder import is_live
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.reading.sealed import SealedFile
from gyre.proxy.log.sealing.twins import Twins, rows_of_calls
from gyre.proxy.log.sealing.widen import interrupted

AttemptKey = tuple[str, int]


@dataclass(slots=True)
class SegmentState:
    path: Path
    live: bool
    closed: bool = False
    sorted: bool = True
    last_order: int = 0
    damage: Damage = field(default_factory=Damage)


@dataclass(slots=True)
class Survey:
    """One pass over segments: how they were left, and which attempts began and ended in them."""

    segments: list[SegmentState] = field(default_factory=list)
    intents: dict[AttemptKey, IntentRecord] = field(default_factory=dict)
    holder: dict[AttemptKey, SegmentState] = field(default_factory=dict)
    """The newest segment that holds the intent; a live one wins."""
    ended: set[AttemptKey] = field(default_factory=set)

    def unfinished(self) -> dict[AttemptKey, IntentRecord]:
        """Attempts whose writer is gone and that have no row in these segments."""
        return {
            key: intent
            for key, intent in self.intents.items()
            if key not in self.ended and not self.holder[key].live and not self.holder[key].closed
        }

    def open(self) -> int:
        return sum(key not in self.ended and self.holder[key].live for key in self.intents)

    def problems(self) -> list[Finding]:
        return [finding for state in self.segments if not state.live for finding in _damages(state)]


def survey(paths: Iterable[Path], visit: Callable[[Record, SegmentState], None]) -> Survey:
    """Read segments, oldest first.

    Raises:
        FileNotFoundError: a segment was sealed meanwhile; list them again.
    """
    result = Survey()
    for path in paths:
        # Asked before reading: a writer that dies meanwhile may have written after our last row.
        state = SegmentState(path, is_live(path))
        result.segments.append(state)
        for record in scan(path, state.damage):
            _note(result, state, record)
            visit(record, state)
    return result


@dataclass(slots=True)
class Pending:
    """The journal's rows as records, duplicates collapsed, in commit order."""

    calls: list[CallRecord]
    executions: list[ExecutionRecord]
    messages: list[NewMessage]
    open: int
    problems: list[Finding]


def read_pending(
    paths: Sequence[Path], sealed: Sequence[SealedFile], executions: frozenset[str] | None = None
) -> Pending:
    """Everything in `paths` that no sealed file has, `executions` only when given."""
    calls: list[CallRecord] = []
    events: list[ExecutionRecord] = []
    messages: dict[bytes, NewMessage] = {}

    def visit(record: Record, _: SegmentState) -> None:
        if isinstance(record, CallRecord):
            # Another execution may have written a message that ours refers to.
            messages.update((message.hash, message) for message in record.new_messages)
            if executions is None or record.identity.execution_id in executions:
                calls.append(record)
        elif isinstance(record, ExecutionRecord) and (
            executions is None or record.execution_id in executions
        ):
            events.append(record)

    found = survey(paths, visit)
    lost = unanswered(found, sealed)
    calls += [interrupted(i) for i in lost if executions is None or i.execution_id in executions]
    calls.sort(key=commit_key)
    twins = Twins(sealed, calls)
    events.sort(key=lambda event: (event.order, event.worker))
    return Pending(
        calls=[record for record in calls if twins.is_new(record)],
        executions=events,
        messages=list(messages.values()),
        open=found.open(),
        problems=found.problems(),
    )


def unanswered(found: Survey, sealed: Sequence[SealedFile]) -> list[IntentRecord]:
    """Attempts that began in the surveyed segments and never ended anywhere in the log."""
    intents = found.unfinished()
    if not intents:
        return []
    since = min(intent.order for intent in intents.values())
    rows = rows_of_calls(sealed, {key[0] for key in intents}, ["call_id", "attempt"], since)
    ended = {(row["call_id"], row["attempt"]) for row in rows}
    return [intent for key, intent in intents.items() if key not in ended]


def commit_key(record: CallRecord) -> tuple[int, str, str, int, int]:
    return record.order, record.worker, record.call_id, record.attempt, record.choice


def _note(result: Survey, state: SegmentState, record: Record) -> None:
    state.sorted = state.sorted and record.order >= state.last_order
    state.last_order = max(state.last_order, record.order)
    if isinstance(record, CallRecord):
        result.ended.add((record.call_id, record.attempt))
    elif isinstance(record, IntentRecord):
        key = (record.call_id, record.attempt)
        result.intents[key] = record
        if key not in result.holder or not result.holder[key].live:
            result.holder[key] = state
    elif isinstance(record, CloseRecord):
        state.closed = True


def _damages(state: SegmentState) -> list[Finding]:
    findings = []
    if state.damage.torn_bytes:
        text = f"{state.damage.torn_bytes} bytes at its end were torn by a kill and are cut off"
        findings.append(note("torn_tail", str(state.path), text))
    if state.damage.bad_rows:
        text = f"{state.damage.bad_rows} rows do not have their checksum and are left out"
        findings.append(error("bad_rows", str(state.path), text))
    return findings
