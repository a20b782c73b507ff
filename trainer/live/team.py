"""What the processes of a live run do together: train, and write checkpoints.

The main process runs all of the run, and tells the others each thing before it does it itself. They do that
much, and wait. While the main process does something else, for hours maybe, a thread tells them about once a
minute that it is still there. With one process there is nobody to tell.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.update.batch import Batch
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.cursor import Cursor
from gyre.trainer.update.ranks import Ranks
from gyre.trainer.update.report import UpdateReport

BEAT_S = 60.0
"""Well below the time after which a process gives another one up."""


class Stream(Protocol):
    def add(self, trees: Sequence[TrainTree]) -> list[UpdateReport]: ...


class Learns(Protocol):
    def stream(self, *, groups: int) -> Stream: ...

    def served_as(self, version: str) -> None: ...

    def logprobs(self, ids: Sequence[int]) -> list[float]: ...


class Saves(Protocol):
    def save(
        self, cursor: Cursor, batch: Batch | None = None, *, live: Mapping[str, Any] | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class _Stream:
    groups: int


@dataclass(frozen=True, slots=True)
class _Add:
    trees: Sequence[TrainTree]


@dataclass(frozen=True, slots=True)
class _ServedAs:
    version: str


@dataclass(frozen=True, slots=True)
class _Score:
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Save:
    live: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Wait:
    pass


@dataclass(frozen=True, slots=True)
class _End:
    failed: bool


_Command = _Stream | _Add | _ServedAs | _Score | _Save | _Wait
_Told = _Command | _End


class Team:
    """On the main process a block, which releases the others at its end; on these `follow`."""

    def __init__(self, ranks: Ranks, learner: Learns, saver: Saves, *, beat_s: float = BEAT_S) -> None:
        self._ranks = ranks
        self._learner = learner
        self._saver = saver
        self._beat_s = beat_s
        self._stream: Stream | None = None
        self._scored: list[float] = []
        self.failed: TrainError | None = None
        """Set when another process is gone: the run has to end with it."""
        self._in_step = True
        """False once one of them may not be where the others are: nothing can be told any more."""
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._beat = threading.Thread(target=self._beats, name="team", daemon=True)

    def stream(self, *, groups: int) -> None:
        """A batch of so many groups begins."""
        self._all(_Stream(groups))

    def add(self, trees: Sequence[TrainTree]) -> list[UpdateReport]:
        """Its next group. As `Streamed.add`."""
        return self._all(_Add(trees))

    def served_as(self, version: str) -> None:
        """As `Learner.served_as`."""
        self._all(_ServedAs(version))

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """As `Learner.logprobs`."""
        self._all(_Score(ids))
        return self._scored

    def save(self, live: Mapping[str, Any]) -> None:
        """A checkpoint that remembers `live` too."""
        self._all(_Save(live))

    def follow(self) -> bool:
        """Do what the main process says, until it ends; whether it ended in order.

        Raises:
            TrainError: as the learner; or another process has ended.
        """
        while True:
            told: _Told = self._ranks.share(_Wait())
            if isinstance(told, _End):
                return not told.failed
            with suppress(Stopped):  # all of them did: the main process says what comes then
                self._do(told)

    def __enter__(self) -> Team:
        if self._ranks.size > 1:
            self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._ranks.size > 1:
            self._beat.join()
        if error is None and self.failed is not None:
            raise self.failed
        if self._in_step:
            with suppress(TrainError) if error else nullcontext():
                self._tell(_End(failed=error is not None))

    def _all(self, command: _Command) -> list[UpdateReport]:
        with self._turn:
            self._tell(command)
            self._in_step = False
            try:
                done = self._do(command)
            except Stopped:
                self._in_step = True
                raise
            self._in_step = True
            return done

    def _tell(self, command: _Told) -> None:
        if self.failed is not None:
            raise self.failed
        try:
            self._ranks.share(command)
        except TrainError as problem:
            self.failed, self._in_step = problem, False
            raise

    def _do(self, command: _Command) -> list[UpdateReport]:
        match command:
            case _Stream(groups):
                self._stream = self._learner.stream(groups=groups)
            case _Add(trees):
                assert self._stream is not None
                return self._stream.add(trees)
            case _ServedAs(version):
                self._learner.served_as(version)
            case _Score(ids):
                self._scored = self._learner.logprobs(ids)
            case _Save(live):
                self._saver.save(Cursor(), live=live)
            case _Wait():
                pass
        return []

    def _beats(self) -> None:
        while not self._over.wait(self._beat_s):
            with self._turn, suppress(TrainError):
                if self._in_step:
                    self._tell(_Wait())
