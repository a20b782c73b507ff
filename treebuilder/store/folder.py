"""The trees folder: where things are, which format they have, and who may build.

`gyre-trees.json` is written last, so it stands for a build that was finished; while one is under way it
says so. Each part names in itself what it was built from: a build that was killed is taken up by the next.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gyre.proxy.log.folder import sync_dir
from gyre.treebuilder.errors import TreeError, unwritable
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.store.schema import FORMAT_VERSION, SCHEMA_VERSION, TABLES

MANIFEST = "gyre-trees.json"
REPORT = "report.json"
META_FORMAT = b"gyre_trees_format"
META_PART = b"gyre_trees_part"

_PART = re.compile(r"(part-\d{5,})\.parquet")
_TEMPORARY = re.compile(r"\.(part-\d{5,}\.parquet|gyre-trees\.json|report\.json)\.tmp")


@dataclass(frozen=True, slots=True)
class PartEntry:
    name: str
    digest: str
    """Of what it was built from."""
    checksums: dict[str, str]
    """xxh3-128 of each table's file, hex."""


@dataclass(slots=True)
class Manifest:
    options: Options
    log: str
    """The log's folder, as it was given."""
    tokenizer: str | None = None
    """Digest of the tokenizer that counted texts."""
    complete: bool = False
    parts: list[PartEntry] = field(default_factory=list)

    def as_json(self) -> bytes:
        told = {
            "format": FORMAT_VERSION,
            "schema": SCHEMA_VERSION,
            "complete": self.complete,
            "log": self.log,
            "options": {"cap": self.options.cap, "seed": self.options.seed, "rule": self.options.rule.value},
            "tokenizer": self.tokenizer,
            "parts": [
                {"name": part.name, "digest": part.digest, "checksums": part.checksums} for part in self.parts
            ],
        }
        return as_json(told)


@dataclass(frozen=True, slots=True)
class TreesFolder:
    root: Path

    def part(self, table: str, name: str) -> Path:
        return self.root / table / f"{name}.parquet"

    def temporary(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.tmp")

    def names(self) -> list[str]:
        """Of all parts of which there is any file."""
        found = {match[1] for path in self._files() if (match := _PART.fullmatch(path.name))}
        return sorted(found, key=lambda name: (len(name), name))

    def sweep(self) -> None:
        """Remove what a killed build left half written."""
        for path in [*self._files(), *self.root.iterdir()]:
            if _TEMPORARY.fullmatch(path.name):
                path.unlink()

    def remove(self, name: str) -> None:
        for table in TABLES:
            self.part(table, name).unlink(missing_ok=True)

    def manifest(self) -> Manifest:
        """Raises TreeError for a newer format and for a folder that holds no trees."""
        try:
            content = (self.root / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            message = f"`{self.root}` is no folder of trees: it has no {MANIFEST}"
            raise TreeError(message, "give the folder that `gyre-trees build` writes") from None
        manifest = self._read(content)
        if manifest is None:
            raise TreeError(f"`{self.root / MANIFEST}` is damaged", "build again: what is there is used")
        return manifest

    def last(self) -> Manifest | None:
        """The manifest to build upon; None when there is none, or a damaged one.

        Raises:
            TreeError: the folder is of a newer format.
        """
        path = self.root / MANIFEST
        return self._read(path.read_bytes()) if path.exists() else None

    def _read(self, content: bytes) -> Manifest | None:
        try:
            told = json.loads(content)
            version = told["format"]
            if isinstance(version, int) and version <= FORMAT_VERSION:
                return _manifest(told)
        except (ValueError, KeyError, TypeError):
            return None
        message = f"`{self.root}` has tree format {version}, this gyre reads up to {FORMAT_VERSION}"
        raise TreeError(message, "use a newer gyre: pip install -U gyre-rl")

    def write(self, name: str, content: bytes) -> None:
        """Replace a small file at once and for good, if it has another content."""
        path = self.root / name
        if path.exists() and path.read_bytes() == content:
            return
        temporary = self.temporary(path)
        try:
            with self.writing(), temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except TreeError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(path)
        sync_dir(self.root)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Says which folder could not be written."""
        try:
            yield
        except OSError as problem:
            raise unwritable(self.root, problem) from problem

    @contextmanager
    def building(self) -> Iterator[None]:
        """Hold the right to build here.

        Raises:
            TreeError: another process has it.
        """
        with self.writing():
            descriptor = os.open(self.root / "build.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another process builds into `{self.root}`"
                raise TreeError(message, "wait for it to end and try again") from None
            yield
        finally:
            os.close(descriptor)

    def _files(self) -> Iterator[Path]:
        for table in TABLES:
            if (self.root / table).is_dir():
                yield from sorted((self.root / table).iterdir())


def create_folder(path: str | Path) -> TreesFolder:
    """A folder to build into, made when it is new; one that holds anything but trees is refused."""
    root = Path(path)
    folder = TreesFolder(root)
    known = {*TABLES, MANIFEST, REPORT, "build.lock"}
    with folder.writing():
        root.mkdir(parents=True, exist_ok=True)
        others = {entry.name for entry in root.iterdir() if not _TEMPORARY.fullmatch(entry.name)} - known
        if others and not (root / MANIFEST).exists():
            message = f"`{root}` holds other files, so no trees are written there"
            raise TreeError(message, "give a folder that is new or empty")
        for table in TABLES:
            (root / table).mkdir(exist_ok=True)
    return folder


def digest_in(path: Path) -> str | None:
    """What a part says it was built from; None for a file that is missing, damaged or not ours."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except PermissionError:
        # It may be as good as ever.
        raise
    except (OSError, pa.ArrowException):
        return None
    found = metadata.get(META_PART)
    return None if found is None else found.decode()


def checksum(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    if not path.stat().st_size:
        return hasher.hexdigest()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        hasher.update(content)
    return hasher.hexdigest()


def as_json(told: dict[str, Any]) -> bytes:
    """The same text for the same values."""
    return json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _manifest(told: dict[str, Any]) -> Manifest:
    """Raises ValueError, KeyError or TypeError for one that no build wrote."""
    options = told["options"]
    return Manifest(
        options=Options(_int(options["cap"]), _int(options["seed"]), Rule(options["rule"])),
        log=_text(told["log"]),
        tokenizer=None if told["tokenizer"] is None else _text(told["tokenizer"]),
        complete=told["complete"] is True,
        parts=[_part(part) for part in told["parts"]],
    )


def _part(told: dict[str, Any]) -> PartEntry:
    name = _text(told["name"])
    if not _PART.fullmatch(f"{name}.parquet"):
        raise ValueError(name)
    return PartEntry(
        name, _text(told["digest"]), {table: _text(told["checksums"][table]) for table in TABLES}
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return value
