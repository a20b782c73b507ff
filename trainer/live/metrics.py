"""Metrics of a live run: lines and TensorBoard, of each update, batch, publication and evaluation.

A line's `kind` says what it is of; in TensorBoard it stands before the names of what is not of an update.
Names and meanings are in docs/metrics.md. A run that goes on from a checkpoint takes back what was written
after it: a batch's line stands before its checkpoint or is lost with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gyre.trainer.live.hooks import Hooks
from gyre.trainer.live.numbers import batch_numbers, evaluation_numbers, publication_numbers
from gyre.trainer.live.reports import BatchReport, Evaluated, Publication, Trained
from gyre.trainer.update.folder import LINES, RunFolder
from gyre.trainer.update.metrics import Pages, line_of, pages, read_lines
from gyre.trainer.update.report import UpdateReport


class LiveMetrics:
    """Each of its methods raises TrainError when the disk is full, or cannot be written."""

    def __init__(self, written: Pages, lines: list[dict[str, Any]], update: int, hooks: Hooks) -> None:
        self._pages = written
        self._update = update
        self._hooks = hooks
        self.lines = lines
        """That were there, when the run went on."""

    def update(self, report: UpdateReport, place: Mapping[str, int]) -> None:
        """`place`: `batch` and `part`, both from 0."""
        self._update = report.update
        self._write({"kind": "update", **line_of(report, place)}, report.metrics())

    def batch(self, report: BatchReport) -> None:
        """After its last update."""
        numbers = batch_numbers(report)
        line = {"kind": "batch", "update": self._update, "batch": report.batch, "burst": report.burst}
        line |= {"version": report.version, **numbers, "trained": [_trained(one) for one in report.groups]}
        self._write(line, _under("batch", numbers))

    def publication(self, publication: Publication) -> None:
        numbers = publication_numbers(publication)
        line = {"kind": "publication", "update": publication.update, "version": publication.version}
        self._write(line | numbers, _under("publication", numbers))

    def evaluation(self, evaluated: Evaluated) -> None:
        numbers = evaluation_numbers(evaluated)
        line = {"kind": "evaluation", "update": evaluated.update, "version": evaluated.version}
        line |= {"temperature": evaluated.temperature, **numbers}
        self._write(line, _under("evaluation" if evaluated.temperature else "evaluation_greedy", numbers))

    def _write(self, line: dict[str, Any], numbers: Mapping[str, float]) -> None:
        self._pages.write(line, numbers)
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        self._hooks.log(finite, line["update"])


@contextmanager
def live_metrics(folder: RunFolder, update: int, hooks: Hooks | None = None) -> Iterator[LiveMetrics]:
    """For what comes after this update; what is there of later ones is removed."""
    with pages(folder, update) as written:
        yield LiveMetrics(written, read_lines(folder.root / LINES), update, hooks or Hooks())


def batch_lines(path: Path) -> list[dict[str, Any]]:
    """Of a `metrics.jsonl`."""
    return [line for line in read_lines(path) if line.get("kind") == "batch"]


def _under(kind: str, numbers: Mapping[str, float]) -> dict[str, float]:
    return {f"{kind}/{name}": value for name, value in numbers.items()}


def _trained(group: Trained) -> dict[str, Any]:
    return {
        "group": group.key,
        "task": group.task,
        "burst": group.burst,
        "staleness": group.staleness,
        "update_staleness": group.update_staleness,
        "scores": list(group.scores),
    }
