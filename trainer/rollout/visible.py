"""What a confined program must be able to read of what is hidden: itself, its interpreter, its libraries."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator
from pathlib import Path

_BESIDE = ("lib", "lib64", "libexec", "pyvenv.cfg", "version", "versions", "shims", "bin")
"""What programs in `X/bin` need of `X`; not all of it: `~/.cargo` holds keys as well."""
_PROGRAMS = frozenset(("bin", "shims"))
_INTERPRETERS = ("python", "python3", "node")


def homes() -> list[Path]:
    """Of the user: by the environment, and by the system."""
    found = [Path(os.environ.get("HOME") or "/"), Path(pwd.getpwuid(os.getuid()).pw_dir)]
    return [home for home in dict.fromkeys(found) if home.is_absolute() and home != Path("/")]


def readable(program: str, words: Iterable[str], path: str, values: Iterable[str] = ()) -> list[Path]:
    """For a program and what runs it; `words` of its command and `values` of variables are the user's own, in
    which he may name files."""
    places = [Path(entry) for entry in path.split(":") if entry]
    places += [Path(program).parent, Path(os.path.realpath(program)).parent]
    found = [
        *_programs(places),
        *_named(words),
        *map(Path, values),
        Path(program),
        Path(os.path.realpath(program)),
    ]
    return [each for each in dict.fromkeys(found) if each.is_absolute() and os.path.exists(each)]


def _programs(places: Iterable[Path]) -> Iterator[Path]:
    """Folders of programs, what stands beside them, and the same where their interpreters really are."""
    waiting, seen = list(places), set[Path]()
    while waiting:
        place = waiting.pop()
        if place in seen or not place.is_absolute():
            continue
        seen.add(place)
        yield place
        if place.name in _PROGRAMS:
            yield from (place.parent / name for name in _BESIDE)
        waiting += {
            Path(os.path.realpath(place / name)).parent for name in _INTERPRETERS if (place / name).exists()
        }


def _named(words: Iterable[str]) -> Iterator[Path]:
    """Files and folders that a command names; a program's own folder, since it may have more files."""
    for word in words:
        if word.startswith("/") and os.path.exists(word):
            path = Path(word)
            yield path if path.is_dir() or path.parent in homes() else path.parent
            yield path
