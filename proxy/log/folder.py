"""The log folder: where things are, which format they have, and who may seal.

`gyre.json` says the format version. Columns may be added within a version; a folder of a newer
format is refused, because its rows could mean something else.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gyre.proxy.errors import CorruptLogError, LogBusyError, LogError, LogFormatError
from gyre.proxy.log.record import journal

FORMAT_VERSION = 1
VERSION_FILE = "gyre.json"
TABLES = ("calls", "messages", "executions")

SEGMENT_NAME = re.compile(r"(?P<order>[0-9a-f]{16})-(?P<worker>.+)\.journal")
SEALED_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.parquet")
TEMP_NAME = re.compile(r"\.[0-9a-f]{16}-[0-9a-f]{16}\.parquet\.tmp")

_BIRTH_S = 60.0
"""An empty segment younger than this may belong to a writer that has not locked it yet."""


@dataclass(frozen=True, slots=True)
class Folder:
    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def lock_file(self) -> Path:
        return self.root / "seal.lock"

    @property
    def proxy_file(self) -> Path:
        """Written by a running proxy: its URL and process id."""
        return self.root / "proxy.json"

    def table(self, name: str) -> Path:
        return self.root / name

    def segment(self, order: int, worker: str) -> Path:
        return self.journal / f"{order:016x}-{worker}{journal.SUFFIX}"

    def segments(self) -> list[Path]:
        """All journal segments, oldest first."""
        return [path for path in _entries(self.journal) if SEGMENT_NAME.fullmatch(path.name)]

    def sealed(self, table: str) -> list[Path]:
        return [path for path in _entries(self.table(table)) if SEALED_NAME.fullmatch(path.name)]

    def foreign(self) -> list[Path]:
        """Files in our folders that gyre did not write; they are left alone."""
        known = {"journal": (SEGMENT_NAME,)} | {name: (SEALED_NAME, TEMP_NAME) for name in TABLES}
        return [
            path
            for name, patterns in known.items()
            for path in _entries(self.root / name)
            if not any(pattern.fullmatch(path.name) for pattern in patterns)
        ]

    def temporary(self) -> list[Path]:
        """What a seal that was killed left half written."""
        return [p for name in TABLES for p in _entries(self.table(name)) if TEMP_NAME.fullmatch(p.name)]

    @contextmanager
    def sealing(self, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the right to rewrite the log; raises LogBusyError while another process has it."""
        descriptor = os.open(self.lock_file, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            deadline = time.monotonic() + wait_s
            while not _locked(descriptor):
                if time.monotonic() >= deadline:
                    message = f"another process is sealing or pruning `{self.root}`"
                    raise LogBusyError(message, "wait for it to end and try again")
                time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)


def open_folder(path: str | Path) -> Folder:
    """An existing log; raises LogFormatError for a newer format and for a folder that is no log."""
    root = Path(path)
    try:
        text = (root / VERSION_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        message = f"`{root}` is not a log folder: it has no {VERSION_FILE}"
        raise LogFormatError(message, "give the folder that `gyre proxy --logs` writes") from None
    _require_format(root, text)
    return Folder(root)


def create_folder(path: str | Path) -> Folder:
    """Open a log to write into it, making the folder when it is new."""
    root = Path(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / VERSION_FILE).exists():
            _write_version(root)
        for name in ("journal", *TABLES):
            (root / name).mkdir(exist_ok=True)
    except OSError as problem:
        raise LogError(f"cannot write to `{root}`: {problem.strerror}") from problem
    return open_folder(root)


def sync_dir(path: Path) -> None:
    """Make renames and unlinks in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_live(segment: Path) -> bool:
    """Whether a segment's writer still runs. Never touches a file that its writer is about to lock."""
    stat = segment.stat()
    if stat.st_size == 0:
        return time.time() - stat.st_mtime < _BIRTH_S
    return journal.is_live(segment)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_format(root: Path, text: bytes) -> None:
    try:
        version = json.loads(text)["format"]
    except (ValueError, KeyError, TypeError):
        raise CorruptLogError(f"`{root / VERSION_FILE}` is damaged: it names no format version") from None
    if not isinstance(version, int) or version > FORMAT_VERSION:
        message = f"`{root}` has log format {version}, this gyre reads up to {FORMAT_VERSION}"
        raise LogFormatError(message, "use a newer gyre: pip install -U gyre-rl")


def _write_version(root: Path) -> None:
    from gyre.proxy.log.schema import SCHEMA_VERSION

    temporary = root / f".{VERSION_FILE}.{os.getpid()}"
    temporary.write_text(json.dumps({"format": FORMAT_VERSION, "schema": SCHEMA_VERSION}) + "\n")
    temporary.replace(root / VERSION_FILE)
    sync_dir(root)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
