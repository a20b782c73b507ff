"""Files that a program replaced by something else are not followed, and not waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.elastic.process.left import NoPlainFileError, plain_file, read_end
from gyre.elastic.process.words import last_lines


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


REPLACED: list[Callable[[Path], object]] = [
    lambda path: path.symlink_to("secret"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/dev/zero"),
    os.mkfifo,
    a_socket,
    os.mkdir,
]


@pytest.mark.parametrize("replace", REPLACED)
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, replace: Callable[[Path], object]) -> None:
    (tmp_path / "secret").write_text("mine")
    path = tmp_path / "out.txt"
    replace(path)
    assert (read_end(path, 100), last_lines(path, 3)) == (None, [])
    with pytest.raises(NoPlainFileError, match="no plain file"), plain_file(path):
        pass


def test_the_end_of_a_file_is_read_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("one\ntwo\n")
    assert (read_end(path, 100), read_end(path, 4), last_lines(path, 1)) == (b"one\ntwo\n", b"two\n", ["two"])
    os.truncate(path, 1 << 26)
    assert read_end(path, 2) == b"\0\0"
    assert read_end(tmp_path / "none", 2) is None
    assert read_end(path / "none", 2) is None
