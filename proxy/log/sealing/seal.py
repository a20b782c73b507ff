"""Journal to Parquet, atomically: `python -m gyre.proxy.log.sealing.seal DIR` prints what it did as JSON.

A group of segments becomes one messages, one executions and one calls file: written under temporary
names, fsynced, renamed in that order. The calls file names its segments, so its rename is the commit;
after it the segments are deleted. A kill at any moment leaves either the segments or their sealed
twin to count, and the next seal removes what is left over. Memory is bounded by one row group plus
the ids of executions that are searched for better parents.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gyre.proxy.calls import CallRecord, IntentRecord, Record
from gyre.proxy.errors import GyreError, LogError
from gyre.proxy.log.findings import Finding
from gyre.proxy.log.folder import Folder, open_folder, sync_dir
from gyre.proxy.log.reading.pending import SegmentState, survey, unanswered
from gyre.proxy.log.reading.sealed import Sealed, SealedFile, list_sealed, projected, row_groups
from gyre.proxy.log.record.lean import without_pandas
from gyre.proxy.log.sealing.files import SealedSet, in_commit_order
from gyre.proxy.log.sealing.reparent import EARLIER, Census, Reparenter
from gyre.proxy.log.sealing.twins import Twins
from gyre.proxy.log.sealing.widen import RowKey, interrupted, row_key

GROUP_SEGMENTS = 64
"""Segments per sealed file at most; all of them are open at once."""
EARLIER_BYTES = 256 << 20
"""Sealed ids that are loaded to search for better parents; beyond it rows stay as they are."""
MAIN_WAIT_S = 30.0


@dataclass(slots=True)
class SealReport:
    """What a seal did; `open` attempts of a running proxy stay in its journal."""

    segments: int = 0
    calls: int = 0
    messages: int = 0
    executions: int = 0
    interrupted: int = 0
    reparented: int = 0
    duplicates: int = 0
    journal_bytes: int = 0
    sealed_bytes: int = 0
    open: int = 0
    problems: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"problems": [finding.as_dict() for finding in self.problems]}


@dataclass(slots=True)
class _Plan:
    """What the first pass over the segments learned; keys and counts, no payload."""

    census: Census = field(default_factory=Census)
    keys: set[RowKey] = field(default_factory=set)
    watched: set[RowKey] = field(default_factory=set)
    """Keys that occur more than once."""
    messages: set[bytes] = field(default_factory=set)
    first_order: int = 2**63 - 1
    lost: dict[str, list[IntentRecord]] = field(default_factory=dict)
    """Attempts that never ended, by the segment that holds them."""

    def visit(self, record: Record, state: SegmentState) -> None:
        if state.live or not isinstance(record, CallRecord):
            return
        key = row_key(record)
        if key in self.keys:
            self.watched.add(key)
        self.keys.add(key)
        self.census.count(record)
        self.messages.update(message.hash for message in record.new_messages)
        self.first_order = min(self.first_order, record.order)


def seal(path: str | Path, *, wait_s: float = 0.0) -> SealReport:
    """Seal every segment whose writer is gone or has left it.

    Raises:
        LogBusyError: another process seals or prunes, for longer than `wait_s`.
        LogFormatError: no log, or one of a newer format.
        LogError: the log cannot be written; nothing is lost.
    """
    folder = open_folder(path)
    with folder.sealing(wait_s):
        try:
            return seal_locked(folder)
        except LogError:
            raise
        except OSError as problem:
            message = f"cannot seal `{folder.root}`: {problem}"
            raise LogError(message, "nothing is lost: the journal still has it all") from problem


def seal_locked(folder: Folder) -> SealReport:
    """The same for a caller that holds the lock."""
    recover(folder)
    sealed = list_sealed(folder)
    plan = _Plan()
    found = survey(folder.segments(), plan.visit)
    dead = [state for state in found.segments if not state.live]
    report = SealReport(open=found.open(), problems=[*sealed.problems, *found.problems()])
    for intent in unanswered(found, sealed.calls):
        holder = found.holder[intent.call_id, intent.attempt].path.name
        plan.lost.setdefault(holder, []).append(intent)
    if not dead:
        return report
    twins = Twins((), ())
    plan.watched |= twins.learn(sealed.calls, {key[0] for key in plan.keys}, plan.first_order)
    reparenter = _reparenter(plan, sealed)
    known = _known_messages(plan, sealed)
    for start in range(0, len(dead), GROUP_SEGMENTS):
        _seal_group(folder, dead[start : start + GROUP_SEGMENTS], plan, twins, reparenter, known, report)
    return report


def recover(folder: Folder) -> None:
    """Remove what a killed seal left: half-written files, and segments that are sealed already."""
    for path in folder.temporary():
        path.unlink()
    sealed = list_sealed(folder)
    for file in sealed.leftover:
        file.path.unlink()
    _unlink(folder, [path for path in folder.segments() if path.name in sealed.segments])


def _seal_group(
    folder: Folder,
    states: Sequence[SegmentState],
    plan: _Plan,
    twins: Twins,
    reparenter: Reparenter,
    known: set[bytes],
    report: SealReport,
) -> None:
    names = [state.path.name for state in states]
    lost = [interrupted(intent) for name in names for intent in plan.lost.get(name, ())]
    with SealedSet(folder, _identifier(names), names, known) as target:
        for record in in_commit_order(states, lost):
            if not isinstance(record, CallRecord):
                target.add_event(record)
            elif row_key(record) in plan.watched and not twins.is_new(record):
                report.duplicates += 1
            else:
                report.reparented += reparenter.place(record)
                target.add_call(record)
        target.commit()
    report.segments += len(states)
    report.interrupted += len(lost)
    report.calls += target.calls.rows
    report.messages += target.messages.rows
    report.executions += target.executions.rows
    report.sealed_bytes += target.size
    report.journal_bytes += sum(state.path.stat().st_size for state in states)
    _unlink(folder, [state.path for state in states])


def _identifier(names: Sequence[str]) -> str:
    """The same for the same segments, so that a seal after a kill replaces its own leftovers."""
    return f"{names[0][:16]}-{xxhash.xxh3_64_hexdigest('/'.join(names).encode())}"


def _reparenter(plan: _Plan, sealed: Sealed) -> Reparenter:
    reparenter = Reparenter(plan.census)
    wanted = plan.census.wanted()
    schema = projected("calls", EARLIER)
    tables, size = [schema.empty_table()], 0
    for file in reversed(sealed.calls) if wanted else ():
        if size < EARLIER_BYTES:
            tables += _readable(file, schema, wanted)
            size += tables[-1].nbytes
    reparenter.learn(pa.concat_tables(tables).sort_by([("order", "ascending")]))
    return reparenter


def _readable(file: SealedFile, schema: pa.Schema, executions: set[str]) -> list[pa.Table]:
    try:
        return list(row_groups(file, schema, ("execution_id", executions)))
    except (OSError, pa.ArrowException):
        # A damaged file is reported by `check`; here it only means fewer candidates.
        return []


def _known_messages(plan: _Plan, sealed: Sealed) -> set[bytes]:
    """Which of the segments' messages sealed files hold already."""
    known: set[bytes] = set()
    wanted = pa.array([digest.hex() for digest in plan.messages], pa.string())
    schema = projected("messages", ["hash"])
    for file in sealed.messages if plan.messages else ():
        try:
            for group in row_groups(file, schema):
                hits = group.filter(pc.is_in(group["hash"], value_set=wanted))["hash"]
                known.update(bytes.fromhex(digest) for digest in hits.to_pylist())
        except (OSError, pa.ArrowException):
            # A message that cannot be read there is written again here.
            continue
    return known


def _unlink(folder: Folder, segments: Sequence[Path]) -> None:
    for path in segments:
        path.unlink()
    if segments:
        sync_dir(folder.journal)


def main(arguments: Sequence[str]) -> int:
    """Run by the proxy as a short-lived process; waits for another seal to end."""
    if len(arguments) != 1:
        print("usage: python -m gyre.proxy.log.sealing.seal DIR", file=sys.stderr)
        return 2
    without_pandas()
    try:
        report = seal(arguments[0], wait_s=MAIN_WAIT_S)
    except GyreError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    print(orjson.dumps({"schema": 1, **report.as_dict()}).decode())
    return 0


if __name__ == "__main__":
    # Ctrl-C is for the proxy, which waits for us; and calls come before us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    sys.exit(main(sys.argv[1:]))
