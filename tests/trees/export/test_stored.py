"""From a log over a folder of trees to every format, as a user goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.treebuilder import build_trees, read_trees
from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from tests.log.builders import LogBuilder, growing_run
from tests.trees.export.load import ROWS, load, trained


@pytest.fixture
def built(tmp_path: Path) -> Path:
    worker = LogBuilder(tmp_path / "log").worker()
    for number in range(3):
        name = f"e{number}"
        growing_run(worker, 4, name, seed=number)
        worker.event("ended", name, group="g", score=float(number), outcome="completed")
    growing_run(worker, 2, "open")
    worker.close()
    build_trees(tmp_path / "log", tmp_path / "trees")
    return tmp_path / "trees"


@pytest.mark.parametrize("fmt", ROWS)
def test_every_format_of_a_stored_build(fmt: Format, built: Path, tmp_path: Path) -> None:
    trees = read_trees(built)
    report = export_trees(trees, fmt, tmp_path / "out")
    assert (report.executions, report.left_out) == (3, {"no_score": 1})
    drawn = [token for row in load(fmt, tmp_path / "out") for token, _ in trained(fmt, row)]
    assert len(drawn) == report.targets == 3 * 4 * 10
    kept = [summary.kept_targets for summary in trees.executions() if summary.score is not None]
    assert sum(kept) == report.targets


def test_documents_of_a_stored_build(built: Path, tmp_path: Path) -> None:
    report = export_trees(read_trees(built), Format.ATIF, tmp_path / "out")
    assert report.executions == 4
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == ["e0", "e1", "e2", "open"]
