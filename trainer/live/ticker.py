"""Tells whoever watches where a live run stands, about twice a second, from its start to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple

from gyre.proxy.errors import GyreError
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import Board
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.status import Phase, Status, StatusFile

_TICK_S = 0.5


class Seen(NamedTuple):
    """What is not told to the board but looked up."""

    counts: Counts
    groups_waiting: int = 0
    groups_ready: int = 0
    restarts: Mapping[str, int] = {}


class Ticker:
    """For the length of a block. The last phase is told at its end: `last`, or that the run failed of the
    error that leaves it."""

    def __init__(self, board: Board, folder: LiveFolder, show: Callable[[Status], None]) -> None:
        self._board = board
        self._file = StatusFile(folder.status)
        self._show = show
        self.look: Callable[[], Seen] = lambda: Seen(Counts())
        self.last = Phase.INTERRUPTED
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if isinstance(error, GyreError):
            self._board.failed(error.message, error.hint)
        elif error is not None:
            self._board.failed(f"{type(error).__name__}: {error}")
        else:
            self._board.enter(self.last)
        self._tell()

    def _run(self) -> None:
        self._tell()
        while not self._over.wait(_TICK_S):
            self._tell()

    def _tell(self) -> None:
        seen = self.look()
        for name, count in seen.restarts.items():
            self._board.restarts(name, count)
        status = self._board.status(
            seen.counts, groups_waiting=seen.groups_waiting, groups_ready=seen.groups_ready
        )
        self._file.write(status)
        self._show(status)
