"""The end of a run: the model is there before anything that takes its time."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gyre.cli.trees import main
from gyre.trainer.live.finish import finish
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.settings import TreeTable
from gyre.trainer.update.computing import Stopped
from gyre.treebuilder import read_trees
from tests.log.builders import LogBuilder, growing_run


@pytest.fixture
def folder(tmp_path: Path) -> LiveFolder:
    folder = LiveFolder(tmp_path)
    worker = LogBuilder(folder.logs).worker()
    for number in range(3):
        growing_run(worker, 2, execution=f"e{number}", step=4, output=3)
    worker.close()
    model = tmp_path / "checkpoint" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return folder


def whole(folder: LiveFolder) -> bool:
    return (folder.final / "config.json").read_text() == "{}"


def test_a_model_and_all_trees(folder: LiveFolder) -> None:
    assert finish(TreeTable(), folder, folder.root / "checkpoint") == folder.final
    assert whole(folder)
    assert len(read_trees(folder.trees).executions()) == 3


def test_it_can_be_stopped_while_trees_are_built_and_done_again(folder: LiveFolder) -> None:
    answers = iter([False, False, True])
    with pytest.raises(Stopped):
        finish(TreeTable(), folder, folder.root / "checkpoint", stop=lambda: next(answers))
    assert whole(folder)
    assert finish(TreeTable(), folder, folder.root / "checkpoint") == folder.final
    assert len(read_trees(folder.trees).executions()) == 3


def test_trees_that_cannot_be_stored_cost_no_model(folder: LiveFolder) -> None:
    folder.trees.write_text("no folder")
    told: list[str] = []
    table = TreeTable(cap=3, seed=7)
    assert finish(table, folder, folder.root / "checkpoint", warn=told.append) == folder.final
    assert whole(folder) and len(told) == 1
    folder.trees.unlink()
    command = shlex.split(told[0].split("`")[-2])
    assert command[0] == "gyre-trees"
    with pytest.raises(SystemExit, match="0"):
        main(command[1:])
    stored = read_trees(folder.trees)
    assert len(stored.executions()) == 3 and (stored.options.cap, stored.options.seed) == (3, 7)
