"""A log as it grows, for who follows it to the end of a run: every row comes once, sealed meanwhile or not.

Rows are taken from the journal. A segment that was begun and sealed between two looks is never seen there:
then its sealed file is named, to be read by who wants it. The same is done for what was sealed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gyre.proxy.calls import CallRecord, CloseRecord, ExecutionRecord, IntentRecord
from gyre.proxy.log.folder import is_live, open_folder
from gyre.proxy.log.reading.pending import AttemptKey
from gyre.proxy.log.reading.scan import Tail
from gyre.proxy.log.reading.sealed import SealedFile, list_sealed, open_sealed

Taken = CallRecord | ExecutionRecord


@dataclass(slots=True)
class _Segment:
    path: Path
    tail: Tail
    closed: bool = False
    """It was left in order: nothing follows, and what was open in it is in the next one."""

    @property
    def is_lost(self) -> bool:
        """Whether what is open in it never ends: its writer is gone and said nothing."""
        if self.closed:
            return False
        try:
            return not is_live(self.path)
        except FileNotFoundError:
            # Sealed, which is only done to what its writer has left.
            return True


@dataclass(slots=True)
class News:
    """What came since the last look."""

    records: list[Taken] = field(default_factory=list)
    sealed: list[SealedFile] = field(default_factory=list)
    """Files of calls with rows that are in no `records`; others of theirs may be."""


class LogStream:
    """One thread at a time."""

    def __init__(self, path: str | Path) -> None:
        """Raises LogFormatError: no log, or one of a newer format."""
        self.folder = open_folder(path)
        self._open: dict[str, _Segment] = {}
        self._taken: set[str] = set()
        """Names of segments that were or are followed."""
        self._sealed: set[str] = set()
        """Names of segments in sealed files."""
        self._intents: dict[str, dict[AttemptKey, tuple[IntentRecord, _Segment]]] = {}
        """By execution: attempts that have begun and not ended."""
        self._open_segments()
        # Afterwards: what is sealed after the segments were listed is then listed here.
        self.before = list_sealed(self.folder)
        """What was sealed at the start; none of it comes by `poll`."""
        self._files = {file.path.name for file in self.before.calls}
        """Names of sealed files that were looked at."""
        self._sealed |= self.before.segments
        for name in self._open.keys() & self._sealed:
            # A seal was killed before it had removed it, or is just about to.
            self._open.pop(name).tail.close()

    def poll(self) -> News:
        present = self._open_segments()
        # Afterwards, as at the start.
        news = News(sealed=self._unseen())
        for segment in list(self._open.values()):
            news.records += self._read(segment)
            if segment.closed or segment.path.name not in present:
                self._open.pop(segment.path.name).tail.close()
        return news

    def lost(self, execution: str) -> list[IntentRecord]:
        """Attempts whose proxy died before they ended, as far as no row says otherwise."""
        begun = self._intents.get(execution, {})
        return [intent for intent, segment in begun.values() if segment.is_lost]

    def forget(self, execution: str) -> None:
        """Nobody asks for it any more."""
        self._intents.pop(execution, None)

    def close(self) -> None:
        for segment in self._open.values():
            segment.tail.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_segments(self) -> set[str]:
        paths = self.folder.segments()
        for path in paths:
            if path.name in self._taken or path.name in self._sealed:
                continue
            try:
                self._open[path.name] = _Segment(path, Tail(path))
            except FileNotFoundError:
                # Sealed just now.
                continue
            self._taken.add(path.name)
        return {path.name for path in paths}

    def _unseen(self) -> list[SealedFile]:
        """Sealed files that are new, with segments that were not followed."""
        files = []
        for path in self.folder.sealed("calls"):
            if path.name in self._files:
                continue
            self._files.add(path.name)
            file = open_sealed(path, [])
            if file is not None:
                self._sealed.update(file.segments)
                if not self._taken.issuperset(file.segments):
                    files.append(file)
        return files

    def _read(self, segment: _Segment) -> Iterator[Taken]:
        for record in segment.tail.poll():
            match record:
                case IntentRecord(call_id=call, attempt=attempt, execution_id=execution):
                    self._intents.setdefault(execution, {})[call, attempt] = record, segment
                case CallRecord(call_id=call, attempt=attempt, identity=identity):
                    self._end(identity.execution_id, (call, attempt))
                    yield record
                case ExecutionRecord():
                    yield record
                case CloseRecord():
                    segment.closed = True

    def _end(self, execution: str, key: AttemptKey) -> None:
        begun = self._intents.get(execution)
        if begun is not None and begun.pop(key, None) is not None and not begun:
            del self._intents[execution]
