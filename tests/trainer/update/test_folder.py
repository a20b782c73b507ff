"""The folder of a run: checkpoints that are whole or not there, and nothing overwritten."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.trainer.errors import TrainError
from gyre.trainer.update.folder import RunFolder


def filled(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)

    return fill


def written(folder: RunFolder, *updates: int, keep: int = 2) -> None:
    for update in updates:
        folder.write_checkpoint(update, filled(str(update)), keep=keep)


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.checkpoints.iterdir())


def test_the_newest_are_kept_and_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    written(folder, 2, 4, 10, keep=2)
    assert names(folder) == ["update-000004", "update-000010"]
    assert folder.newest() == folder.place(10)
    assert (tmp_path / "latest" / "model" / "weights").read_text() == "10"
    assert os.readlink(tmp_path / "latest") == "checkpoints/update-000010"


def test_numbers_count_and_not_the_order_of_names(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    written(folder, 999_999, 1_000_000, keep=1)
    assert names(folder) == ["update-1000000"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    written(folder, 1)

    def full(place: Path) -> None:
        (place / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(TrainError, match="No space left") as caught:
        folder.write_checkpoint(2, full, keep=1)
    assert "--resume" in caught.value.hint
    assert names(folder) == ["update-000001"]
    assert (tmp_path / "latest" / "model" / "weights").read_text() == "1"


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    written(folder, 1, 2)
    for name in (".update-000003.writing", ".update-000001.removing"):
        (folder.checkpoints / name / "model").mkdir(parents=True)
    (tmp_path / ".metrics.jsonl.tmp").write_text("half")
    (tmp_path / ".latest.new").symlink_to("checkpoints/update-000001")
    (tmp_path / "latest").unlink()
    with folder.locked():
        assert names(folder) == ["update-000001", "update-000002"]
        assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "latest", "train.lock"}
        assert (tmp_path / "latest").resolve() == folder.place(2)


def test_the_folder_is_one_processs_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out")
    with folder.locked():
        folder.write_file("x", b"x")
        with pytest.raises(TrainError, match="another process trains into"), RunFolder(folder.root).locked():
            pass
        assert (folder.root / "x").exists()
    with folder.locked():
        pass


@pytest.mark.parametrize("problem", [None, TrainError("no"), KeyboardInterrupt()])
def test_a_folder_in_which_nothing_was_written_is_gone_again(
    tmp_path: Path, problem: BaseException | None
) -> None:
    folder = RunFolder(tmp_path / "out")
    try:
        with folder.locked():
            if problem:
                raise problem
    except (TrainError, KeyboardInterrupt):
        pass
    assert not folder.root.exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match="cannot be written"), RunFolder(tmp_path / "file" / "out").locked():
        pass


def test_a_new_run_needs_an_empty_folder_and_a_resumed_one_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.require(resume=False)
    with pytest.raises(TrainError, match="there is no run"):
        folder.require(resume=True)
    folder.write_file("run.json", b"{}")
    folder.require(resume=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TrainError, match="is not empty, and nothing in it is overwritten"):
        folder.require(resume=False)


def test_a_folder_of_something_else_is_not_to_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    with pytest.raises(TrainError, match="is not empty") as caught:
        RunFolder(tmp_path).require(resume=False)
    assert caught.value.hint == "give a new folder"
    for resume in (False, True):
        with pytest.raises(TrainError, match="is no folder"):
            RunFolder(tmp_path / "manifest.json").require(resume=resume)


def test_a_run_that_ended_before_its_first_update_is_nothing_to_keep(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("run.json", "train.toml", "metrics.jsonl"):
        folder.write_file(name, b"")
    (tmp_path / "tensorboard").mkdir()
    folder.require(resume=False)
    folder.write_file("metrics.jsonl", b"{}\n")
    with pytest.raises(TrainError, match="is not empty"):
        folder.require(resume=False)
    folder.write_file("metrics.jsonl", b"")
    written(folder, 1)
    with pytest.raises(TrainError, match="is not empty"):
        folder.require(resume=False)


def test_what_else_lies_among_the_checkpoints_is_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.checkpoints / "update-best").mkdir(parents=True)
    written(folder, 1, 2, 3, keep=1)
    with folder.locked():
        assert names(folder) == ["update-000003", "update-best"]


def test_each_kind_of_run_has_names_of_its_own(tmp_path: Path) -> None:
    live = RunFolder(tmp_path, settings="run.toml", bare=frozenset({"logs", "checkpoints", "latest"}))
    for name in ("run.json", "run.toml"):
        live.write_file(name, b"")
    (tmp_path / "logs").mkdir()
    live.require(resume=False)
    with pytest.raises(TrainError, match="is not empty"):
        RunFolder(tmp_path).require(resume=False)
    (tmp_path / "train.toml").touch()
    with pytest.raises(TrainError, match="is not empty"):
        live.require(resume=False)


def test_a_recording_that_stands_where_a_run_would_put_its_own_is_kept(tmp_path: Path) -> None:
    live = RunFolder(tmp_path, settings="run.toml", bare=frozenset({"logs", "status.json"}))
    (tmp_path / "status.json").touch()
    live.require(resume=False)
    (tmp_path / "logs").mkdir()
    with pytest.raises(TrainError, match="is not empty, and nothing in it is overwritten"):
        live.require(resume=False)
    live.write_file("run.json", b"")
    live.require(resume=False)


def test_a_first_checkpoint_is_nothing_to_keep_and_is_replaced(tmp_path: Path) -> None:
    live = RunFolder(tmp_path, bare=frozenset({"checkpoints", "latest"}))
    live.write_file("run.json", b"")
    live.write_checkpoint(0, filled("first"), keep=2)
    live.require(resume=False)
    live.write_checkpoint(0, filled("second"), keep=2)
    assert names(live) == ["update-000000"]
    assert (tmp_path / "latest" / "model" / "weights").read_text() == "second"
    written(live, 1)
    with pytest.raises(TrainError, match="is not empty"):
        live.require(resume=False)
