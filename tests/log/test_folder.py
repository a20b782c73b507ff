"""The log folder: format version, names, the seal lock."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gyre.proxy.errors import CorruptLogError, LogBusyError, LogError, LogFormatError
from gyre.proxy.log.folder import create_folder, is_live, open_folder
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder


def test_a_new_folder_says_its_format(tmp_path: Path) -> None:
    create_folder(tmp_path / "a" / "logs")
    assert json.loads((tmp_path / "a/logs/gyre.json").read_text()) == {"format": 1, "schema": 3}


def test_creating_a_folder_again_changes_nothing(tmp_path: Path) -> None:
    create_folder(tmp_path)
    before = (tmp_path / "gyre.json").stat().st_mtime_ns
    assert create_folder(tmp_path).root == tmp_path
    assert (tmp_path / "gyre.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("use", [read_log, seal, create_folder])
def test_a_newer_format_is_refused(tmp_path: Path, use: object) -> None:
    create_folder(tmp_path)
    (tmp_path / "gyre.json").write_text('{"format": 2, "schema": 9}')
    with pytest.raises(LogFormatError, match="log format 2") as caught:
        use(tmp_path)  # type: ignore[operator]
    assert "newer gyre" in caught.value.hint


def test_a_folder_that_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match=f"`{tmp_path}` is not a log folder"):
        read_log(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
def test_a_damaged_version_file_is_named(tmp_path: Path, text: str) -> None:
    create_folder(tmp_path)
    (tmp_path / "gyre.json").write_text(text)
    with pytest.raises(CorruptLogError, match=r"gyre\.json` is damaged"):
        open_folder(tmp_path)


def test_a_path_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot write to"):
        create_folder(tmp_path / "file" / "logs")


def test_only_one_process_seals(tmp_path: Path) -> None:
    folder = create_folder(tmp_path)
    with folder.sealing():
        with pytest.raises(LogBusyError, match="another process"):
            seal(tmp_path)
        start = time.monotonic()
        with pytest.raises(LogBusyError):
            seal(tmp_path, wait_s=0.2)
        assert time.monotonic() - start >= 0.2
    assert seal(tmp_path).segments == 0


def test_a_segment_that_its_writer_has_not_locked_yet_is_live(tmp_path: Path) -> None:
    folder = create_folder(tmp_path)
    path = folder.segment(1, "w")
    path.touch()
    assert is_live(path)
    os.utime(path, (0, 0))
    assert not is_live(path)


def test_a_segment_is_live_as_long_as_it_is_open(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1")
    assert is_live(worker.path)
    worker.die()
    assert not is_live(worker.path)


def test_foreign_files_are_seen_and_ours_are_not(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    worker = log.worker()
    worker.call("c1")
    worker.die()
    seal(tmp_path)
    log.worker().die()
    for name in ("journal/notes.txt", "calls/other.parquet", "messages/.DS_Store"):
        (tmp_path / name).write_text("x")
    foreign = {str(path.relative_to(tmp_path)) for path in log.folder.foreign()}
    assert foreign == {"journal/notes.txt", "calls/other.parquet", "messages/.DS_Store"}
