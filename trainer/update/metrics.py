"""A line of JSON and an event of TensorBoard per update.

Names and meanings are in docs/training.md; a live run (`trainer/live/metrics.py`) has more kinds of lines. A
run that goes on from a checkpoint takes back what was written after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any

import orjson
from torch.utils.tensorboard import SummaryWriter

from gyre.trainer.update.folder import EVENTS, LINES, RunFolder
from gyre.trainer.update.report import UpdateReport


class Pages:
    """`metrics.jsonl` and `tensorboard/`, side by side."""

    def __init__(self, folder: RunFolder, lines: BufferedWriter, events: SummaryWriter) -> None:
        self._folder = folder
        self._lines = lines
        self._events = events

    def write(self, line: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        """`line` has `update`: where the numbers stand in TensorBoard, and by what they are taken back.

        Raises:
            TrainError: the disk is full, or cannot be written.
        """
        with self._folder.written():
            self._lines.write(orjson.dumps(line) + b"\n")
            self._lines.flush()
            for name, value in numbers.items():
                if not math.isfinite(value):
                    continue  # a warning would be all that comes of it
                self._events.add_scalar(name, value, line["update"])
            self._events.flush()

    def close(self) -> None:
        with self._folder.written():
            try:
                self._events.close()
            finally:
                self._lines.close()


@contextmanager
def pages(folder: RunFolder, update: int) -> Iterator[Pages]:
    """For what comes after this update; what is there of later ones is removed."""
    _cut(folder, update)
    with folder.written():
        lines = (folder.root / LINES).open("ab")
        events = SummaryWriter(str(folder.root / EVENTS), purge_step=update + 1)
    written = Pages(folder, lines, events)
    try:
        yield written
    finally:
        written.close()


@dataclass(frozen=True, slots=True)
class Metrics:
    pages: Pages

    def write(self, report: UpdateReport, place: Mapping[str, int]) -> None:
        """Once per update, in order. `place`: where it was in the data.

        Raises:
            TrainError: the disk is full, or cannot be written.
        """
        self.pages.write(line_of(report, place), report.metrics())


@contextmanager
def metrics(folder: RunFolder, update: int) -> Iterator[Metrics]:
    with pages(folder, update) as written:
        yield Metrics(written)


def line_of(report: UpdateReport, place: Mapping[str, int]) -> dict[str, Any]:
    line = {"update": report.update, **place, "skipped": report.skipped, **report.metrics()}
    return line | {"versions": dict(report.versions)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: the last one of a killed run may not be, and after a power cut none has to."""
    if not path.exists():
        return []
    lines = [_line(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return [line for line in lines if line]


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("update"), int) else None


def _cut(folder: RunFolder, update: int) -> None:
    lines = read_lines(folder.root / LINES)
    kept = [orjson.dumps(line) + b"\n" for line in lines if line["update"] <= update]
    folder.write_file(LINES, b"".join(kept))
