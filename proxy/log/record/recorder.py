"""From finished calls to the journal: groups of rows, flushed at the end of the event loop's tick.

`commit` returns when the rows are with the operating system (or on the disk, with durability
`always`), so a call is answered only after that. A write error never fails a call: the segment is
left, a fresh one is tried, and if that fails too the recorder is unhealthy and says why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gyre.proxy.calls import CallRecord, CloseRecord, ExecutionRecord, IntentRecord, Record
from gyre.proxy.errors import LogError
from gyre.proxy.log.folder import Folder, create_folder
from gyre.proxy.log.record.attempt import Attempt, intent_of
from gyre.proxy.log.record.delta import DeltaIndex
from gyre.proxy.log.record.journal import Opener, Segment, open_new
from gyre.proxy.log.record.parts import KnownMessages
from gyre.proxy.log.record.rows import rows_of
from gyre.proxy.settings import Log

log = logging.getLogger(__name__)
_TICK_S = 1.0
"""How often a full disk is tried again and the segment's size and age are looked at."""

_LARGE = 1 << 20
_PATIENCE = 8
"""How many times larger than usual a segment may grow while calls are heavy."""
_FRUGAL = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "1",
}
"""A sealing process keeps to one small heap; the calls it runs beside need memory more."""


class Recorder:
    """One worker's writer. All methods are for the event loop's thread."""

    def __init__(self, folder: Path, worker: str, settings: Log, opener: Opener = open_new) -> None:
        self.folder = folder
        self.worker = worker
        self.problem: str | None = None
        """Why nothing can be recorded at present; None while all is well."""
        self.rows = 0
        self.unrecorded = 0
        self.bytes = 0
        self.busy: Callable[[], bool] = lambda: False
        """Whether calls need the memory and the processor that sealing would take."""
        self._settings = settings
        self._opener = opener
        self._index = DeltaIndex()
        self._messages = KnownMessages()
        self._open: dict[tuple[str, int], IntentRecord] = {}
        self._pending: list[Record] = []
        self._group: asyncio.Future[bool] | None = None
        self._last_order = 0
        self._segment: Segment | None = None
        self._broken: list[Segment] = []
        """Segments that a write error ended; locked until their successor has the open calls."""
        self._opened_at = 0.0
        self._dirty = False
        """Something was written since the last sync."""
        self._has_rows = False
        """Something was written since the segment was opened: there is something to seal."""
        self._tending: asyncio.Task[None] | None = None
        self._sealings: set[asyncio.Task[dict[str, Any] | None]] = set()

    def start(self) -> None:
        """Open the first segment and begin the periodic work.

        Raises:
            LogError: the folder cannot be written, or holds a log of a newer format.
        """
        create_folder(self.folder)
        try:
            self._open_segment()
        except OSError as error:
            raise LogError(f"cannot write to `{self.folder}`: {error.strerror or error}") from error
        self._tending = asyncio.create_task(self._tend())

    def next_order(self) -> int:
        """Commit numbers are times that never repeat or run backwards."""
        self._last_order = max(self._last_order + 1, time.time_ns())
        return self._last_order

    def intend(self, attempt: Attempt) -> None:
        """An attempt goes out to a backend."""
        intent = intent_of(attempt, self.next_order(), self.worker)
        self._open[intent.call_id, intent.attempt] = intent
        self._append([intent])

    async def commit(self, attempt: Attempt) -> list[CallRecord]:
        """Write a finished attempt; returns its rows, also when the disk did not take them."""
        rows = rows_of(attempt, self._index, self._messages, self.next_order, self.worker)
        self._open.pop((attempt.call.call_id, attempt.number), None)
        group = self._append(rows.records)
        if rows.bytes > _LARGE:
            # Encoding a group of such rows at once would hold them all several times over.
            self._flush()
        written = await group
        if written:
            self.rows += len(rows.records)
            rows.learn(self._index, self._messages)
        else:
            self.unrecorded += len(rows.records)
        return rows.records

    async def event(self, record: ExecutionRecord) -> bool:
        return await self._append([record])

    async def rotate(self) -> dict[str, Any] | None:
        """Leave the segment for a fresh one and seal what is closed; returns the seal's report."""
        self._flush()
        old = self._segment
        try:
            self._open_segment()
        except OSError as error:
            self._fail(error)
        else:
            self._finish(old)
        return await self._seal()

    async def close(self, *, seal: bool = True) -> None:
        """Finish: flush, close the segment in order, and seal unless a later start shall do that."""
        if self._tending:
            self._tending.cancel()
        await asyncio.gather(*self._sealings, return_exceptions=True)
        self._flush()
        old, self._segment = self._segment, None
        if self._open and old is not None:
            old.close()  # without its last record: what is still open in it reads as interrupted
        else:
            self._finish(old)
        self._drop_broken()
        if seal:
            await self._seal()

    def forget(self) -> None:
        """Refer to nothing written so far, since it may be pruned."""
        self._index.forget()
        self._messages.forget()

    def _append(self, records: Sequence[Record]) -> asyncio.Future[bool]:
        if self._group is None:
            loop = asyncio.get_running_loop()
            self._group = loop.create_future()
            loop.call_soon(self._flush)
        self._pending += records
        return self._group

    def _flush(self) -> None:
        """Write the group that came together in this tick."""
        records, group = self._pending, self._group
        self._pending, self._group = [], None
        if group is None:
            return
        written = later = False
        try:
            written = self._write(records)
            later = written and self._settings.durability == "always"
        finally:
            # Whatever happens, the calls of this group must not wait for ever.
            if not later:
                _resolve(group, written)
        if later:
            task = asyncio.ensure_future(self._sync())
            task.add_done_callback(lambda done: _resolve(group, done.result()))

    def _write(self, records: list[Record]) -> bool:
        """Append to the segment; after an error once more to a fresh one, since the old may be torn."""
        for _ in range(2):
            try:
                if self._segment is None:
                    self._open_segment()
                segment = self._segment
                assert segment is not None
                before = segment.bytes
                segment.append(records)
                self.bytes += segment.bytes - before
                self._dirty = True
                self._has_rows = self._has_rows or bool(records)
                return True
            except OSError as error:
                self._fail(error)
        return False

    def _open_segment(self) -> None:
        """Begin the next segment, with the calls that are open, before the last one is given up.

        The old segment stays locked until then, so that no seal takes its open calls for lost.
        """
        path = Folder(self.folder).segment(self.next_order(), self.worker)
        segment = None
        try:
            segment = Segment(path, self._opener)
            if self._open:
                segment.append(list(self._open.values()))
        except OSError:
            if segment is not None:
                segment.close()
            path.unlink(missing_ok=True)
            raise
        self._segment, self._opened_at = segment, time.monotonic()
        self._has_rows = False
        self._drop_broken()
        if self.problem:
            log.warning("recording again in `%s`", self.folder)
        self.problem = None

    def _fail(self, error: OSError) -> None:
        if self.problem is None:
            log.error("cannot write the log in `%s`: %s", self.folder, error.strerror or error)
        self.problem = f"cannot write the log in `{self.folder}`: {error.strerror or error}"
        if self._segment is not None:
            self._broken.append(self._segment)
            self._segment = None

    def _drop_broken(self) -> None:
        while self._broken:
            self._broken.pop().close()

    def _finish(self, segment: Segment | None) -> None:
        """Close a segment in order: what was open in it is in the next one."""
        if segment is None:
            return
        try:
            segment.append([CloseRecord(self.next_order(), self.worker)])
        except OSError as error:
            log.error("cannot write the log in `%s`: %s", self.folder, error.strerror or error)
        segment.close()

    async def _tend(self) -> None:
        """Sync, rotate, and try again after errors, for as long as the worker runs."""
        await self._seal()
        tick = min(_TICK_S, self._settings.sync_s)
        while True:
            await asyncio.sleep(tick)
            if self.problem:
                self._write([])
            elif self._due():
                await self.rotate()
            elif self._dirty and self._settings.durability == "interval":
                await self._sync()

    def _due(self) -> bool:
        if self._segment is None or not self._has_rows:
            return False
        if time.monotonic() - self._opened_at > self._settings.rotate_s:
            return True
        patience = _PATIENCE if self.busy() else 1
        return self._segment.bytes > patience * self._settings.rotate_bytes

    async def _sync(self) -> bool:
        """Bring the segment to the disk without holding up the loop; False when it refuses."""
        if self._segment is None:
            return False
        self._dirty = False
        try:
            await asyncio.to_thread(_fsync, self._segment.duplicate())
        except OSError as error:
            self._fail(error)
            return False
        return True

    async def _seal(self) -> dict[str, Any] | None:
        """Seal closed segments; who asked may leave, but the process that seals is waited for by `close`."""
        mine = self._segment.path if self._segment else None
        if all(path == mine for path in Folder(self.folder).segments()):
            return {}
        sealing = asyncio.create_task(self._run_seal())
        self._sealings.add(sealing)
        sealing.add_done_callback(self._sealings.discard)
        return await asyncio.shield(sealing)

    async def _run_seal(self) -> dict[str, Any] | None:
        """Seal in a process of its own, so that calls do not wait for Parquet."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # nothing in the working folder may stand in for a module
                "-m",
                "gyre.proxy.log.sealing.seal",
                str(self.folder),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **_FRUGAL},
            )
        except OSError as error:
            # No process or memory to be had: the segments wait for the next seal.
            log.warning("sealing `%s` cannot start: %s", self.folder, error.strerror or error)
            return None
        out, errors = await process.communicate()
        if process.returncode == 0:
            report: dict[str, Any] = msgspec.json.decode(out)
            return report
        log.warning("sealing `%s` failed: %s", self.folder, errors.decode(errors="replace").strip()[-500:])
        return None


def _resolve(group: asyncio.Future[bool], written: bool) -> None:
    if not group.done():
        group.set_result(written)


def _fsync(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
