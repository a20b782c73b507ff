"""Folders that a harness has filled: copied, removed, looked through, however deep they are.

Nothing here recurses: an agent in a loop makes thousands of folders, each in the last.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path

from gyre.trainer.rollout.room import is_full
from gyre.trainer.rollout.sparse import copy_bytes

_Entry = os.DirEntry[str]
_Id = tuple[int, int]
"""Device and inode: one folder, by whatever name."""
_Files = dict[_Id, str]
"""Where files that have more names than one were copied to."""


def copy_tree(source: Path, target: Path, stop: threading.Event | None = None) -> int:
    """Copy a workspace, or a part of it when `stop` is set. Returns how many entries could not be copied.

    Links stay links, holes stay holes, and one file by several names stays one: it takes no more room.

    Sockets, pipes and devices are left out, and so is what may not be read, and what lies so deep that the
    system has no path for it.

    Raises:
        OSError: `source` itself cannot be read, or `target` not be made; or the disk is full.
    """
    return len(_copy(source, target, lambda entry: not _is_plain(entry), {}, stop or threading.Event()))


def copy_files(source: Path, target: Path, without: Collection[Path] = ()) -> None:
    """Make `target` what `source` is, but for the folders `without`; links stay links.

    Links to one of these folders are left out as well.

    Raises:
        OSError: something in it cannot be read; names it.
    """
    hidden = {found for folder in without if (found := _id(folder))}
    problems = _copy(source, target, lambda entry: bool(hidden) and _id(entry.path) in hidden)
    if problems:
        name, why = problems[0]
        raise OSError(f"cannot copy `{name}`: {why}")


def remove_tree(folder: Path) -> None:
    """Remove a folder, also where folders in it forbid that.

    Raises:
        OSError: something in it cannot be removed; as much as possible is.
    """
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    os.chmod(folder, 0o700)
    waiting, problems = [str(folder)], list[OSError]()
    mark = secrets.token_hex(8)
    places = (str(folder / f".{mark}-{number}") for number in count())
    while waiting:
        found = waiting.pop()
        try:
            waiting += _emptied(found, places, problems)
            if found != str(folder):
                os.rmdir(found)
        except OSError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]
    folder.rmdir()


def has_files(folder: Path) -> bool:
    """Whether anything but folders lies in it."""
    waiting = [str(folder)]
    while waiting:
        try:
            entries = _entries(waiting.pop())
        except OSError:
            continue
        if any(not entry.is_dir(follow_symlinks=False) for entry in entries):
            return True
        waiting += [entry.path for entry in entries]
    return False


def _emptied(folder: str, places: Iterator[str], problems: list[OSError]) -> list[str]:
    """Remove its files and bring its folders to `places`, near the top: so no path grows too long."""
    moved = []
    for entry in _entries(folder):
        try:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                place = next(places)
                os.rename(entry.path, place)
                moved.append(place)
            else:
                os.unlink(entry.path)
        except OSError as problem:
            problems.append(problem)
    return moved


def _copy(
    source: Path,
    target: Path,
    left_out: Callable[[_Entry], bool],
    files: _Files | None = None,
    stop: threading.Event | None = None,
) -> list[tuple[str, str]]:
    """Copy what is not left out, until `stop`. Returns what could not be copied: (path, why)."""
    entries = _entries(str(source))
    target.mkdir(parents=True, exist_ok=True)
    itself = _id(target)
    made = [(str(source), str(target))]
    problems: list[tuple[str, str]] = []
    waiting = [(entry, str(target)) for entry in entries]
    while waiting and not (stop and stop.is_set()):
        entry, parent = waiting.pop()
        place = os.path.join(parent, entry.name)
        try:
            if left_out(entry):
                continue
            if not entry.is_dir(follow_symlinks=False):
                _copy_file(entry, place, files, stop)
            elif _id(entry.path) != itself:
                inner = _entries(entry.path)
                os.makedirs(place, exist_ok=True)
                made.append((entry.path, place))
                waiting += [(each, place) for each in inner]
        except OSError as problem:
            if is_full(problem):
                raise  # half a copy is none
            problems.append((entry.path, _why(problem)))
    return problems + _like_sources(made)


def _copy_file(entry: _Entry, place: str, files: _Files | None, stop: threading.Event | None) -> None:
    """Without `files` each name is given a file of its own."""
    found = entry.stat(follow_symlinks=False)
    one = found.st_dev, found.st_ino
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), place)
    elif files and one in files:
        os.link(files[one], place)
    else:
        copy_bytes(entry.path, place, stop)
        if files is not None and found.st_nlink > 1:
            files[one] = place
    shutil.copystat(entry.path, place, follow_symlinks=False)


def _like_sources(made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Give folders the modes and times of theirs; the inner ones first, which may forbid to be entered."""
    problems = []
    for source, target in reversed(made):
        try:
            shutil.copystat(source, target)
        except OSError as problem:
            problems.append((source, _why(problem)))
    return problems


def _entries(folder: str) -> list[_Entry]:
    with os.scandir(folder) as entries:
        return list(entries)


def _is_plain(entry: _Entry) -> bool:
    mode = entry.stat(follow_symlinks=False).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _id(path: str | Path) -> _Id | None:
    """Of what it is or leads to; None when that is nothing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _why(problem: OSError) -> str:
    return problem.strerror or str(problem)
