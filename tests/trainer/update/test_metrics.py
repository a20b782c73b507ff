"""What is told of each update, and that the documentation has all of it."""

from __future__ import annotations

import json
import math
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gyre.trainer.errors import TrainError
from gyre.trainer.settings import LossSettings
from gyre.trainer.update.folder import RunFolder
from gyre.trainer.update.metrics import metrics
from gyre.trainer.update.report import Skipped, UpdateReport
from tests.trainer.update.test_learner import Rig, replace_settings

DOCS = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
PLACE = {"epoch": 0, "batch": 1, "part": 0}


@pytest.fixture(scope="module")
def report() -> UpdateReport:
    rig = Rig(replace_settings(loss=LossSettings(kl=0.1), updates_per_batch=2))
    return rig.learner.update(rig.learner.begin([[one] for one in rig.trees()]), 0)


def documented() -> set[str]:
    rows = re.findall(r"^\| (`.*?`) \|", DOCS.partition("## Metrics")[2], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_number_is_documented_and_nothing_else(report: UpdateReport) -> None:
    assert set(report.metrics()) == documented()


def test_an_update_without_variance_has_the_documented_ones_down_to_skipped() -> None:
    rig = Rig()
    found = rig.update([replace(one, advantage=0.0) for one in rig.trees()]).metrics()
    rows = list(documented_in_order())
    last = rows.index("skipped/not_finite")
    assert set(found) == {name for name in rows[: last + 1] if not re.match("seconds/[ops]", name)}


def documented_in_order() -> list[str]:
    rows = re.findall(r"^\| (`.*?`) \|", DOCS.partition("## Metrics")[2], re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_a_line_and_an_event_for_each_update(tmp_path: Path, report: UpdateReport) -> None:
    with metrics(RunFolder(tmp_path), 0) as told:
        for update in (1, 2):
            told.write(replace(report, update=update), PLACE)
    lines = lines_of(tmp_path)
    assert [line["update"] for line in lines] == [1, 2]
    assert lines[0]["skipped"] == "no"
    assert lines[0]["batch"] == 1
    assert lines[0]["versions"] == dict(report.versions)
    assert lines[0]["loss"] == pytest.approx(report.loss)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == set(report.metrics())
    assert [event.step for event in events.Scalars("loss")] == [1, 2]


def test_what_was_written_after_the_checkpoint_is_taken_back(tmp_path: Path, report: UpdateReport) -> None:
    folder = RunFolder(tmp_path)
    with metrics(folder, 0) as told:
        for update in (1, 2, 3):
            told.write(replace(report, update=update), PLACE)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"update": 4, "loss"')  # killed in the middle
    with metrics(folder, 1) as told:
        told.write(replace(report, update=2, lr=0.5), PLACE)
    assert [(line["update"], line["lr"] == 0.5) for line in lines_of(tmp_path)] == [(1, False), (2, True)]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("lr")] == [1, 2]


def test_what_is_not_finite_is_null(tmp_path: Path, report: UpdateReport) -> None:
    bad = replace(report, loss=math.nan, grad_norm=math.inf, skipped=Skipped.NOT_FINITE)
    with metrics(RunFolder(tmp_path), 0) as told:
        told.write(bad, PLACE)
    (line,) = lines_of(tmp_path)
    assert (line["loss"], line["grad_norm"], line["skipped"]) == (None, None, "not_finite")


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_lines_that_a_power_cut_damaged_are_dropped(tmp_path: Path, report: UpdateReport) -> None:
    folder, path = RunFolder(tmp_path), tmp_path / "metrics.jsonl"
    with metrics(folder, 0) as told:
        for update in (1, 2):
            told.write(replace(report, update=update), PLACE)
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, b'{"upda', b"7", b"{}", b"\xff", second, b"\0" * 40, b""]))
    with metrics(folder, 2) as told:
        told.write(replace(report, update=3), PLACE)
    assert [line["update"] for line in lines_of(tmp_path)] == [1, 2, 3]


def test_a_full_disk_is_told(tmp_path: Path, report: UpdateReport) -> None:
    folder = RunFolder(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(TrainError, match="could not be written: File too large"), metrics(folder, 0) as told:
        told.write(report, PLACE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            told.write(report, PLACE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
