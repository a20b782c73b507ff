"""The folder of a run: who may write it, and how a checkpoint comes into being whole or not at all.

    OUT/train.toml, run.json           settings as resolved; inputs, versions, revision
    OUT/metrics.jsonl, tensorboard/    a line and an event per update
    OUT/checkpoints/update-000010/     see `checkpoint.py`
    OUT/latest                         a link to the newest checkpoint

A checkpoint is written beside its place under a name with a dot, brought to the disk, renamed, and named
by `latest`; only then are older ones taken away, by the opposite way: renamed to a name with a dot, and
removed. What starts with a dot is a leftover of something that was killed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gyre.proxy.log.folder import sync_dir
from gyre.trainer.errors import TrainError

LATEST = "latest"
LOCK = "train.lock"
RUN, SETTINGS, LINES, EVENTS = "run.json", "train.toml", "metrics.jsonl", "tensorboard"
_NAME = re.compile(r"update-(\d{6,})")
_LEFT = re.compile(r"\.(.*\.(writing|removing|tmp)|latest\.new)")
_ROOM = "make room and go on with `--resume`"

Observer = Callable[[str], None]
"""Told where the work stands, as `model written`. Tests kill the process there."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`settings` and `bare` are names: of the settings' file, and of what else a run of this kind leaves that
    ended before its first update."""

    root: Path
    settings: str = SETTINGS
    bare: frozenset[str] = frozenset()

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def place(self, update: int) -> Path:
        return self.checkpoints / f"update-{update:06d}"

    def all(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        found = [path for path in self.checkpoints.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.partition("-")[2]))

    def newest(self) -> Path | None:
        return next(reversed(self.all()), None)

    def require(self, *, resume: bool) -> None:
        """Raises TrainError for what a new run would overwrite, or where there is nothing to go on with."""
        if self.root.exists() and not self.root.is_dir():
            raise TrainError(f"`{self.root}` is no folder", "give a new one")
        has_run = (self.root / RUN).exists()
        if resume and not has_run:
            hint = "leave `--resume` out to begin one"
            raise TrainError(f"there is no run in `{self.root}` to go on with", hint)
        if not resume and not self._is_free():
            text = f"`{self.root}` is not empty, and nothing in it is overwritten"
            another = "give a new folder"
            hint = f"`--resume` goes on with the run there; for another one {another}" if has_run else another
            raise TrainError(text, hint)

    def _is_free(self) -> bool:
        """Whether there is nothing, or what a run leaves that ended before its first update."""
        if not self.root.exists():
            return True
        bare = {LOCK, RUN, self.settings, LINES, EVENTS} | self.bare
        there = list(self.root.iterdir())
        # A run has this before it has a folder. Without it `logs`, say, is a recording of somebody's.
        ours = (self.root / RUN).exists() or not any(path.is_dir() for path in there)
        lines, newest = self.root / LINES, self.newest()
        return (
            ours
            and {path.name for path in there} <= bare
            and not (lines.exists() and lines.stat().st_size)
            and (newest is None or newest == self.place(0))
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, hold the right to write it, and sweep what a killed run left.

        If nothing was written in the end, the folder is gone again.

        Raises:
            TrainError: another process has it, or it cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as problem:
            raise TrainError(f"`{self.root}` cannot be written: {problem.strerror}") from problem
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainError(f"another process trains into `{self.root}`") from None
            try:
                self._sweep()
                yield
            finally:
                self._forget()
        finally:
            os.close(descriptor)

    def _forget(self) -> None:
        if {path.name for path in self.root.iterdir()} == {LOCK}:
            (self.root / LOCK).unlink(missing_ok=True)
            self.root.rmdir()

    def write_file(self, name: str, content: bytes) -> None:
        """Replace a small file at once and for good.

        Raises:
            TrainError: it could not be written.
        """
        temporary = self.root / f".{name}.tmp"
        with self.written():
            temporary.write_bytes(content)
            sync_file(temporary)
            temporary.replace(self.root / name)
            sync_dir(self.root)

    @contextmanager
    def written(self) -> Iterator[None]:
        """TrainError for what the system says about writing into the folder."""
        try:
            yield
        except OSError as problem:
            text = f"`{self.root}` could not be written: {problem.strerror or problem}"
            raise TrainError(text, _ROOM) from problem

    def write_checkpoint(
        self, update: int, fill: Callable[[Path], None], *, keep: int, at: Observer = lambda _: None
    ) -> Path:
        """`fill` writes into an empty folder, which then is the newest checkpoint.

        Raises:
            TrainError: it could not be written. All that was there is as it was.
        """
        place = self.place(update)
        temporary = self.checkpoints / f".{place.name}.writing"
        try:
            self._write(place, temporary, fill, at)
            self._retain(keep, at)
        except OSError as problem:
            shutil.rmtree(temporary, ignore_errors=True)
            text = f"the checkpoint `{place}` could not be written: {problem.strerror or problem}"
            raise TrainError(text, _ROOM) from problem
        return place

    def _write(self, place: Path, temporary: Path, fill: Callable[[Path], None], at: Observer) -> None:
        temporary.mkdir(parents=True)
        fill(temporary)
        for path in sorted(temporary.rglob("*")):
            sync_dir(path) if path.is_dir() else sync_file(path)
        sync_dir(temporary)
        at("checkpoint before rename")
        if place.exists():  # of a run that ended before its first update
            remove(place)
        temporary.rename(place)
        sync_dir(self.checkpoints)
        at("checkpoint renamed")
        self._name_newest()
        at("checkpoint named")

    def _name_newest(self) -> None:
        link, newest = self.root / f".{LATEST}.new", self.newest()
        if newest is not None:
            link.unlink(missing_ok=True)
            link.symlink_to(newest.relative_to(self.root))
            link.replace(self.root / LATEST)
            sync_dir(self.root)

    def _retain(self, keep: int, at: Observer) -> None:
        for path in self.all()[:-keep]:
            remove(path, at)

    def _sweep(self) -> None:
        self._name_newest()  # a killed run may not have come to it
        for folder in (self.root, self.checkpoints):
            for path in folder.iterdir() if folder.is_dir() else ():
                if _LEFT.fullmatch(path.name):
                    path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


def remove(folder: Path, at: Observer = lambda _: None) -> None:
    """At once for whoever looks; a leftover that a kill makes of it begins with a dot."""
    doomed = folder.with_name(f".{folder.name}.removing")
    folder.rename(doomed)
    at("checkpoint removing")
    shutil.rmtree(doomed)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
