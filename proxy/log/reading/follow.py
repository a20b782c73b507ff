"""Rows of a log as they are recorded, for people who watch."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.folder import open_folder
from gyre.proxy.log.reading.scan import Tail


class Follower:
    """Each `poll` gives the calls that were committed since the last one, in commit order."""

    def __init__(self, path: str | Path) -> None:
        self._folder = open_folder(path)
        self._tails: dict[Path, Tail] = {}

    def poll(self) -> list[CallRecord]:
        present = set(self._folder.segments())
        for path in present - self._tails.keys():
            try:
                self._tails[path] = Tail(path)
            except FileNotFoundError:
                # Sealed just now.
                continue
        records = [record for tail in self._tails.values() for record in tail.poll()]
        for path in self._tails.keys() - present:
            self._tails.pop(path).close()
        calls = [record for record in records if isinstance(record, CallRecord)]
        return sorted(calls, key=lambda record: (record.order, record.worker, record.choice))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tail in self._tails.values():
            tail.close()
