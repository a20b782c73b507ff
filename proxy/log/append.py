"""Events into a log from outside its proxy: beside one that runs, or without any."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gyre.proxy.calls import CloseRecord, ExecutionRecord
from gyre.proxy.errors import LogError
from gyre.proxy.log.folder import Folder, sync_dir
from gyre.proxy.log.record.journal import Opener, Segment, open_new


def append_events(folder: Folder, records: Sequence[ExecutionRecord], opener: Opener = open_new) -> None:
    """A segment of their own: all in one write and on the disk when this returns, or none.

    Raises:
        LogError: the log cannot be written.
    """
    path = folder.segment(records[0].order, records[0].worker)
    end = CloseRecord(records[-1].order + 1, records[0].worker)
    try:
        segment = Segment(path, opener)
        try:
            segment.append([*records, end])
            _sync(segment)
            sync_dir(folder.journal)
        except OSError:
            # While it is locked, so that no seal takes what we say is not written.
            path.unlink(missing_ok=True)
            raise
        finally:
            segment.close()
    except OSError as problem:
        path.unlink(missing_ok=True)
        raise LogError(f"cannot write to `{folder.root}`: {problem.strerror or problem}") from problem


def _sync(segment: Segment) -> None:
    descriptor = segment.duplicate()
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
