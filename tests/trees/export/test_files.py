"""An export appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.export import files
from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree
from tests.trees.export.builders import Folder, straight, usual
from tests.trees.export.load import ROWS, load


class Torn(Folder):
    """Trees whose second part cannot be read."""

    def __iter__(self) -> Iterator[tuple[ExecutionSummary, ExecutionTree]]:
        yield next(super().__iter__())
        raise TreeError("part-00001.parquet is torn")


@pytest.mark.parametrize("fmt", ROWS)
def test_a_failure_leaves_what_was_there(fmt: Format, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    torn = Torn(pairs=usual().pairs)
    with pytest.raises(TreeError, match="torn"):
        export_trees(torn, fmt, out, force=True)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_what_is_there_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    with pytest.raises(TreeError, match="is there already"):
        export_trees(usual(), Format.JSONL, out)
    export_trees(usual(), Format.JSONL, out, force=True)
    assert len(load(Format.JSONL, out)) == 8


def test_a_folder_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="is a folder"):
        export_trees(usual(), Format.JSONL, tmp_path, force=True)


def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TreeError, match="is no file"):
        export_trees(usual(), Format.JSONL, pipe, force=True)
    assert pipe.is_fifo()


@pytest.mark.parametrize("fmt", [*ROWS, Format.ATIF])
@pytest.mark.parametrize("name", ["file/out", "n" * 250])
def test_a_path_that_cannot_be_written_is_named(fmt: Format, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TreeError, match=f"cannot write to .*{name}") as raised:
        export_trees(usual(), fmt, tmp_path / name)
    assert "--out" in raised.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_above_are_made(tmp_path: Path) -> None:
    export_trees(usual(), Format.JSONL, tmp_path / "a" / "b" / "rows.jsonl")
    assert (tmp_path / "a" / "b" / "rows.jsonl").exists()


def test_the_same_trees_give_the_same_bytes(tmp_path: Path) -> None:
    for fmt in ROWS:
        one, two = tmp_path / f"{fmt}-1", tmp_path / f"{fmt}-2"
        export_trees(usual(), fmt, one)
        export_trees(usual(), fmt, two)
        assert one.read_bytes() == two.read_bytes()


def test_row_groups_of_parquet_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "VALUES", 50)
    folder = Folder()
    for number in range(10):
        folder.add(straight(f"e{number}"), score=1.0)
    out = tmp_path / "rows.parquet"
    export_trees(folder, Format.PARQUET, out)
    found = pq.ParquetFile(out)
    # 5 tokens in 4 list columns are 20 values a row, so a group closes with its third row.
    assert [found.metadata.row_group(n).num_rows for n in range(found.num_row_groups)] == [3, 3, 3, 1]
    assert [row["execution_id"] for row in load(Format.PARQUET, out)] == [f"e{n}" for n in range(10)]
