"""Folders copied and removed as they are, whatever stands in them."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.trainer.rollout.place import bytes_below
from gyre.trainer.rollout.tree import copy_files, copy_tree, has_files, remove_tree

LONG = "d" * 200


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "source"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("text")
    (folder / "a" / "b" / "file").chmod(0o640)
    (folder / "a" / "link").symlink_to("b/file")
    (folder / "a" / "nowhere").symlink_to("nothing")
    (folder / "to-folder").symlink_to("a")
    (folder / "a" / "b").chmod(0o500)
    for path in (folder / "a" / "b" / "file", folder / "a" / "b", folder / "a", folder):
        os.utime(path, ns=(10**18, 10**18 + len(path.name)))
    yield folder
    remove_tree(folder)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Folders in folders, longer than any path may be, with a file at the end."""
    folder = tmp_path / "deep"
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(40):
        os.mkdir(LONG, dir_fd=here)
        inner = os.open(LONG, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    yield folder
    remove_tree(folder)


def seen(folder: Path) -> list[tuple[str, int, int, str]]:
    """(path, mode, time, what it says or leads to) of all."""
    found = []
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        plain = path.read_text() if stat.S_ISREG(status.st_mode) else ""
        text = os.readlink(path) if path.is_symlink() else plain
        time = 0 if path.is_symlink() else status.st_mtime_ns
        found.append((str(path.relative_to(folder)), status.st_mode, time, text))
    return found


def test_a_copy_has_modes_times_and_links(source: Path, tmp_path: Path) -> None:
    assert copy_tree(source, tmp_path / "one") == 0
    copy_files(source, tmp_path / "two")
    assert seen(tmp_path / "one") == seen(tmp_path / "two") == seen(source)
    assert len(seen(source)) == 7


def test_sockets_and_pipes_are_no_part_of_a_workspace(source: Path, tmp_path: Path) -> None:
    before = seen(source)
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(source / "socket"))
    assert copy_tree(source, tmp_path / "copy") == 0
    assert [one[0] for one in seen(tmp_path / "copy")] == [one[0] for one in before]
    with pytest.raises(OSError, match=r"cannot copy `.*(pipe|socket)`: "):
        copy_files(source, tmp_path / "other")


def test_folders_that_are_left_out_also_by_a_link(source: Path, tmp_path: Path) -> None:
    logs = source / "a" / "logs"
    logs.mkdir()
    (logs / "secret").write_text("x")
    (source / "to-logs").symlink_to("a/logs")
    copy_files(source, source / "runs" / "copy", [logs, source / "runs", tmp_path / "none"])
    names = {one[0] for one in seen(source / "runs" / "copy")}
    assert "a/b/file" in names and not names & {"a/logs", "to-logs", "runs"}


def test_a_folder_copied_into_itself_ends(source: Path) -> None:
    assert copy_tree(source, source / "a" / "copy") == 0
    assert not (source / "a" / "copy" / "a" / "copy").exists()


def test_holes_stay_holes(tmp_path: Path) -> None:
    work, copy = tmp_path / "work", tmp_path / "copy"
    work.mkdir()
    texts = {0: b"first", 5 << 23: b"middle", 9 << 23: b"last"}
    with (work / "sparse").open("wb") as file:
        for place, text in texts.items():
            file.seek(place)
            file.write(text)
        file.truncate(10 << 23)
    (work / "hole").touch()
    os.truncate(work / "hole", 1 << 26)
    assert copy_tree(work, copy) == 0
    assert [(copy / name).stat().st_size for name in ("sparse", "hole")] == [10 << 23, 1 << 26]
    assert bytes_below(copy) < 1 << 20
    with (copy / "sparse").open("rb") as file:
        for place, text in texts.items():
            file.seek(place)
            assert file.read(len(text) + 1) == text + b"\0"


def test_a_file_by_several_names_takes_its_room_once(tmp_path: Path) -> None:
    work, copy = tmp_path / "work", tmp_path / "copy"
    (work / "a").mkdir(parents=True)
    (work / "a" / "one").write_bytes(b"x" * (1 << 20))
    for name in ("two", "a/three"):
        os.link(work / "a" / "one", work / name)
    assert copy_tree(work, copy) == 0
    assert {path.read_bytes() for path in copy.rglob("*") if path.is_file()} == {b"x" * (1 << 20)}
    assert bytes_below(copy) < 2 << 20
    copy_files(work, tmp_path / "task")
    assert (tmp_path / "task" / "two").stat().st_nlink == 1


def test_a_full_disk_is_no_file_that_could_not_be_copied(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy" / "a" / "b").mkdir(parents=True)
    (tmp_path / "copy" / "a" / "b" / "file").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        copy_tree(source, tmp_path / "copy")


def test_a_copy_ends_when_it_shall(source: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert copy_tree(source, tmp_path / "copy", stop) == 0
    assert not has_files(tmp_path / "copy")


def test_what_is_too_deep_for_a_path_is_counted(deep: Path, tmp_path: Path) -> None:
    assert copy_tree(deep, tmp_path / "copy") == 1
    assert (tmp_path / "copy" / LONG / LONG).is_dir()
    assert not has_files(deep / LONG)
    remove_tree(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_everything_is_removed_and_nothing_that_links_lead_to(
    source: Path, deep: Path, tmp_path: Path
) -> None:
    before = seen(source)
    (deep / "link").symlink_to(source)
    (deep / "closed").mkdir()
    (deep / "closed" / "file").write_text("")
    (deep / "closed").chmod(0)
    remove_tree(deep)
    assert not deep.exists()
    (tmp_path / "link").symlink_to(source)
    remove_tree(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    remove_tree(tmp_path / "link")
    assert seen(source) == before


def test_whether_there_are_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "a").mkdir(parents=True)
    assert has_files(source) and not has_files(tmp_path / "empty") and not has_files(tmp_path / "none")
