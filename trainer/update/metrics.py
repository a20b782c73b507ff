"""A line of JSON and an event of TensorBoard per update.

Names and meanings are in docs/training.md. A run that goes on from a checkpoint takes back what was written
after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import Any

import orjson
from torch.utils.tensorboard import SummaryWriter

from gyre.trainer.update.folder import EVENTS, LINES, RunFolder
from gyre.trainer.update.report import UpdateReport


class Metrics:
    """`write` is to be called once per update, in order."""

    def __init__(self, folder: RunFolder, lines: BufferedWriter, events: SummaryWriter) -> None:
        self._folder = folder
        self._lines = lines
        self._events = events

    def write(self, report: UpdateReport, place: dict[str, int]) -> None:
        """`place`: where the update was in the data.

        Raises:
            TrainError: the disk is full, or cannot be written.
        """
        numbers = report.metrics()
        line = {"update": report.update, **place, "skipped": report.skipped, **numbers}
        with self._folder.written():
            self._lines.write(orjson.dumps(line | {"versions": dict(report.versions)}) + b"\n")
            self._lines.flush()
            for name, value in numbers.items():
                if not math.isfinite(value):
                    continue  # a warning would be all that comes of it
                self._events.add_scalar(name, value, report.update)
            self._events.flush()

    def close(self) -> None:
        with self._folder.written():
            try:
                self._events.close()
            finally:
                self._lines.close()


@contextmanager
def metrics(folder: RunFolder, update: int) -> Iterator[Metrics]:
    """For updates after this one; what is there of later ones is removed."""
    _cut(folder, update)
    with folder.written():
        lines = (folder.root / LINES).open("ab")
        events = SummaryWriter(str(folder.root / EVENTS), purge_step=update + 1)
    told = Metrics(folder, lines, events)
    try:
        yield told
    finally:
        told.close()


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
