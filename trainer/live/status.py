"""Where a live run stands: `status.json`, written about once a second and read by `gyre train status`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from gyre.proxy.process import lives
from gyre.trainer.errors import TrainError
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.reports import Evaluated

SCHEMA = 1
_SILENT_S = 600.0
"""A run on another machine counts as gone when it has said nothing for so long."""


class Phase(StrEnum):
    STARTING = "starting"
    ROLLOUT = "rollout"
    """Nothing to train yet: executions run."""
    TRAINING = "training"
    PUBLISHING = "publishing"
    EVALUATING = "evaluating"
    ENDED = "ended"
    INTERRUPTED = "interrupted"
    """Ended in order before its last batch; may be gone on with."""
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (Phase.ENDED, Phase.INTERRUPTED, Phase.FAILED)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in the history."""

    batch: int
    pass_rate: float | None
    mean_score: float | None


class Staleness(msgspec.Struct, frozen=True, kw_only=True):
    """Between a group's dispatch and its consumption; over the groups of a batch."""

    mean: float
    """Publications."""
    max: int
    updates_mean: float
    """Updates, those that were skipped included."""
    updates_max: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    run: str
    """Its folder."""
    pid: int
    host: str
    born: int | None
    """When the process began, as the kernel counts: a number of a process may be given anew."""
    started_at: float
    """Unix seconds, as are the others."""
    updated_at: float
    phase: Phase = Phase.STARTING
    phase_at: float
    batches: int
    """Of the whole run."""
    batches_done: int = 0
    batch: int = 0
    """Under way, from 0."""
    burst: int = 0
    version: str = ""
    """That the engines serve."""
    updates: int = 0
    """Done, those that were skipped included."""
    groups_waiting: int = 0
    """Dispatched, with executions still to end."""
    groups_ready: int = 0
    """To be trained."""
    executions: Counts = msgspec.field(default_factory=Counts)
    tokens_per_s: float | None = None
    """Sampled, in groups that came to their end lately."""
    history: Sequence[Point] = ()
    """The last batches, oldest first."""
    staleness: Staleness | None = None
    """Of the last batch, as are the next four."""
    kept_share: float | None = None
    """Of sampled tokens that may be trained, those that are."""
    tree_savings: float | None = None
    groups_varied: int | None = None
    """Groups whose scores are not all equal."""
    seconds: Mapping[str, float] = {}
    """Wall clock by phase."""
    seconds_in_all: Mapping[str, float] = {}
    evaluations: Sequence[Evaluated] = ()
    """Of each temperature the first, the best and the last."""
    restarts: Mapping[str, int] = {}
    """Of services that had died, by this process."""
    warnings: Sequence[str] = ()
    """The last few."""
    error: str = ""
    """Why it failed."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class StatusFile:
    path: Path

    def write(self, status: Status) -> None:
        """At once and whole, but not waiting for the disk. What cannot be written is let go: a full disk is
        told by whoever writes what matters."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(status) + b"\n")
            temporary.replace(self.path)


def read_status(root: Path) -> Status | None:
    """None: no live run has been in this folder.

    Raises:
        TrainError: it cannot be read.
    """
    path = LiveFolder(root).status
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise TrainError(f"`{path}` cannot be read: {problem.strerror}") from problem
    try:
        newer = msgspec.json.decode(content, type=_Schema).schema > SCHEMA
        if not newer:
            return msgspec.json.decode(content, type=Status)
    except msgspec.DecodeError as problem:
        hint = "a run that goes on writes it anew: `gyre train RUN.toml --resume`"
        raise TrainError(f"`{path}` is damaged: {problem}", hint) from None
    raise TrainError(f"`{path}` was written by a newer gyre", "use a newer gyre: pip install -U gyre-rl")


class _Schema(msgspec.Struct):
    schema: int


def is_running(status: Status) -> bool:
    """Whether its process lives. Of one on another machine only its silence is known."""
    if status.host != os.uname().nodename:
        return time.time() - status.updated_at < _SILENT_S
    return lives(status.pid, status.born)
