"""A folder of safetensors, read into memory of our own: nothing of it can change afterwards.

To publish is to write a new folder and to name it, directly or by switching a symbolic link: the link
is followed once, at the start. A file that is written to or replaced while it is read is refused. Its
time says so, except where it is written through a mapping, which moves no time: all bytes are therefore
read a second time and compared, which doubles the reading. A writer that stands still from
the first reading to the last is not noticed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import torch
from torch import Tensor

from gyre.elastic.engine.weights import blob
from gyre.proxy.errors import RequestError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
HINT = "write a new folder, move it to its name when it is whole, and publish that name"
CLOCK_TICK_S = 0.02
"""A file system's clock may stand still for so long: an older file shows by its time that it was written."""

PATIENCE_S = 0.05
"""Between the two readings of what is small: meanwhile a writer that lost its processor goes on."""
PIECE_BYTES = 4 << 20
"""Of the second reading, which is compared piece by piece and not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    folder: Path
    """Resolved."""
    tensors: dict[str, Tensor]
    """By their names in the files; in memory of their own."""
    files: dict[str, str]
    """The file that each tensor is of."""
    config: dict[str, Any] | None
    """`config.json`, if there is one."""

    def where(self, name: str) -> str:
        """How to call a tensor in an error; one that was put together from several has no file."""
        return f"{self.folder / self.files.get(name, '')}: {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Which file was read, its state before, and its bytes (uint8, [size])."""

    path: Path
    identity: tuple[int, ...]
    memory_N: npt.NDArray[np.uint8]


def read_checkpoint(folder: Path) -> Checkpoint:
    """All tensors of the folder; RequestError 400 for what is not a whole one, 409 for one that changes."""
    folder = _resolve(folder)
    seen: list[_Seen] = []
    config = _read_json(folder / CONFIG, seen) if (folder / CONFIG).exists() else None
    listed = _listed(folder, seen)
    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    for name, expected in listed.items():
        found = blob.parse(_read(folder / name, seen), str(folder / name)).tensors
        if expected is not None:
            _require_listed(folder / name, found, expected)
        tensors.update(found)
        files.update(dict.fromkeys(found, name))
    time.sleep(PATIENCE_S)
    for file in seen:
        _require_unchanged(file)
    return Checkpoint(folder=folder, tensors=tensors, files=files, config=config)


def bad(message: str) -> RequestError:
    return RequestError(message, 400, "bad_weights")


def _resolve(folder: Path) -> Path:
    try:
        resolved = folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise bad(f"{folder} cannot be opened: {error}") from None
    if not resolved.is_dir():
        raise bad(f"{folder} is not a folder")
    return resolved


def _listed(folder: Path, seen: list[_Seen]) -> Mapping[str, set[str] | None]:
    """The files to read, each with the names of its tensors as far as an index tells them."""
    single, index = (folder / SINGLE).exists(), (folder / INDEX).exists()
    if single and index:
        raise bad(f"{folder} has both {SINGLE} and {INDEX}: which of them counts cannot be known")
    if single:
        return {SINGLE: None}
    if not index:
        raise bad(f"{folder} has neither {SINGLE} nor {INDEX}")
    weight_map = _read_json(folder / INDEX, seen).get("weight_map")
    return _shards(folder / INDEX, weight_map)


def _shards(index: Path, weight_map: object) -> dict[str, set[str]]:
    if not isinstance(weight_map, dict) or not weight_map:
        raise bad(f"{index} has no weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise bad(f"{index} lists {name!r}, which is not the name of a file beside it")
        shards.setdefault(name, set()).add(tensor)
    return shards


def _require_listed(path: Path, found: Mapping[str, Tensor], expected: set[str]) -> None:
    if lacking := sorted(expected - found.keys()):
        raise bad(f"{path} lacks {named(lacking)}, which the index says is in it")
    if unlisted := sorted(found.keys() - expected):
        raise bad(f"{path} has {named(unlisted)}, which the index does not say")


def named(names: Sequence[str]) -> str:
    """Some names for an error."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _read_json(path: Path, seen: list[_Seen]) -> dict[str, Any]:
    try:
        value = orjson.loads(blob.raw(_read(path, seen)))
    except orjson.JSONDecodeError as error:
        raise bad(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad(f"{path} is not an object")
    return value


def _read(path: Path, seen: list[_Seen]) -> Tensor:
    """The file's bytes (uint8, [size]) in new memory; what it was goes to `seen`."""
    try:
        with _open(path) as file:
            return _read_open(file.fileno(), path, seen)
    except OSError as error:
        raise bad(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise bad(f"{path} does not fit into memory beside the weights in use") from None


def _open(path: Path) -> FileIO:
    # Not to be held up by a pipe that somebody left under the name.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)


def _read_open(descriptor: int, path: Path, seen: list[_Seen]) -> Tensor:
    state = _settled(descriptor, path)
    if not stat.S_ISREG(state.st_mode):
        raise bad(f"{path} is not a file")
    if not state.st_size:
        raise bad(f"{path} is empty")
    # Not a bytearray, whose zeros are written while it holds the interpreter lock: all streams would stop.
    memory_N = np.empty(state.st_size, np.uint8)
    _fill(memory_N, descriptor, path)
    seen.append(_Seen(path=path, identity=_identity(state), memory_N=memory_N))
    return torch.from_numpy(memory_N)


def _fill(memory_N: npt.NDArray[np.uint8], descriptor: int, path: Path) -> None:
    rest = memory_N.data
    while rest:
        read = os.readv(descriptor, [rest])
        if not read:
            raise changed(path)
        rest = rest[read:]


def _settled(descriptor: int, path: Path) -> os.stat_result:
    """Its state, old enough for the next write to give it another time."""
    state = os.fstat(descriptor)
    if abs(time.time_ns() - state.st_mtime_ns) < CLOCK_TICK_S * 1e9:
        time.sleep(CLOCK_TICK_S)
        if _identity(os.fstat(descriptor)) != _identity(state):
            raise changed(path)
    return state


def _require_unchanged(seen: _Seen) -> None:
    """Still the same file under the name, with the same bytes: the parts are of one publication."""
    try:
        with _open(seen.path) as file:
            if _identity(os.fstat(file.fileno())) != seen.identity:
                raise changed(seen.path)
            _require_same_bytes(seen, file.fileno())
    except OSError:
        raise changed(seen.path) from None


def _require_same_bytes(seen: _Seen, descriptor: int) -> None:
    buffer_C = np.empty(min(PIECE_BYTES, seen.memory_N.size), np.uint8)
    for start in range(0, seen.memory_N.size, PIECE_BYTES):
        first_C = seen.memory_N[start : start + PIECE_BYTES]
        again_C = buffer_C[: first_C.size]
        _fill(again_C, descriptor, seen.path)
        if not np.array_equal(first_C, again_C):
            raise changed(seen.path)


def changed(path: Path) -> RequestError:
    return RequestError(f"{path} changed while it was read", 409, "weights_changed", HINT)


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
