"""A folder that changes while it is read is refused; what was read cannot change any more."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from gyre.elastic.engine.weights import checkpoint
from gyre.elastic.engine.weights.checkpoint import read_checkpoint
from gyre.proxy.errors import RequestError

N = 4096


def write(folder: Path, value: float, name: str = "model.safetensors", tensor: str = "w") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(safetensors.torch.save({tensor: torch.full((N,), value)}))
    return path


def write_sharded(folder: Path) -> Path:
    """Two shards with a tensor each; returns the index."""
    write(folder, 1.0, "model-1.safetensors", "a")
    write(folder, 2.0, "model-2.safetensors", "b")
    return write_index(folder, {"a": "model-1.safetensors", "b": "model-2.safetensors"})


def write_index(folder: Path, weight_map: object) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def refused(folder: Path) -> RequestError:
    with pytest.raises(RequestError) as error:
        read_checkpoint(folder)
    return error.value


def test_a_single_file_is_read_with_its_config(tmp_path: Path) -> None:
    write(tmp_path / "v1", 1.5)
    (tmp_path / "v1" / "config.json").write_text('{"a": 1}')
    read = read_checkpoint(tmp_path / "v1")
    assert read.tensors["w"].tolist() == [1.5] * N
    assert read.config == {"a": 1}
    assert read.where("w") == f"{tmp_path}/v1/model.safetensors: w"


def test_shards_are_read_together(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    read = read_checkpoint(tmp_path)
    assert {name: float(tensor[0]) for name, tensor in read.tensors.items()} == {"a": 1.0, "b": 2.0}
    assert read.config is None


def test_what_was_read_is_no_map_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 1.0)
    read = read_checkpoint(tmp_path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    path.write_bytes(b"")
    assert read.tensors["w"].tolist() == [1.0] * N


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\x40")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def replace(path: Path) -> None:
    os.replace(write(path.parent, 2.0, "other"), path)


def replace_in_the_same_tick(path: Path) -> None:
    state = path.stat()
    other = write(path.parent, 2.0, "other")
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(other, path)


CHANGES = [overwrite, truncate, append, replace, replace_in_the_same_tick, Path.unlink, Path.touch]


def before_the_read(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> None:
    """Runs `action` once, just before the read of that number."""
    readv, reads = os.readv, []

    def hooked(descriptor: int, buffers: list[memoryview]) -> int:
        reads.append(descriptor)
        if len(reads) == number:
            action()
        return readv(descriptor, buffers)

    monkeypatch.setattr(os, "readv", hooked)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    path = write(tmp_path, 1.0)
    before_the_read(monkeypatch, 1, lambda: change(path))
    error = refused(tmp_path)
    assert error.message == f"{path} changed while it was read"
    assert (error.status, error.code) == (409, "weights_changed")


def test_a_file_of_this_moment_is_watched_until_its_clock_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, 1.0)
    monkeypatch.setattr(time, "sleep", lambda _: overwrite(path))
    assert refused(tmp_path).message == f"{path} changed while it was read"


def through_a_map(path: Path, value: float) -> None:
    """Writes the last number of the file."""
    np.memmap(path, np.float32, "r+", shape=(1,), offset=path.stat().st_size - 4)[0] = value


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("changed", ["model-1.safetensors", "model-2.safetensors"])
def test_a_file_that_is_written_through_a_map_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, pieces: int
) -> None:
    write_sharded(tmp_path)
    path = tmp_path / changed
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", path.stat().st_size // pieces)
    for file in tmp_path.iterdir():
        os.utime(file, ns=(0, 0))  # long ago: nothing waits before the first reading
    # Its time is set back, so that the bytes alone can tell.
    monkeypatch.setattr(time, "sleep", lambda _: (through_a_map(path, 3.0), os.utime(path, ns=(0, 0))))
    error = refused(tmp_path)
    assert error.message == f"{path} changed while it was read"
    assert (error.status, error.code) == (409, "weights_changed")


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_file_that_stays_is_whole_whatever_it_is_compared_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    path = write(tmp_path, 1.0)
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", path.stat().st_size // pieces)
    assert read_checkpoint(tmp_path).tensors["w"].tolist() == [1.0] * N


def test_a_file_that_shrinks_in_the_second_reading_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, 1.0)
    before_the_read(monkeypatch, 2, lambda: truncate(path))
    assert refused(tmp_path).code == "weights_changed"


@pytest.mark.parametrize("changed", ["model.safetensors.index.json", "model-1.safetensors", "config.json"])
def test_shards_of_two_publications_are_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    write_sharded(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    before_the_read(monkeypatch, 4, lambda: replace(tmp_path / changed))
    assert refused(tmp_path).message == f"{tmp_path / changed} changed while it was read"


def test_a_link_that_is_switched_meanwhile_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, current = tmp_path / "v1", tmp_path / "v2", tmp_path / "current"
    for folder, value in ((old, 1.0), (new, 2.0)):
        write(folder, value)
        (folder / "config.json").write_text(json.dumps({"value": value}))
    current.symlink_to(old)

    def switch() -> None:
        (tmp_path / "next").symlink_to(new)
        os.replace(tmp_path / "next", current)

    before_the_read(monkeypatch, 2, switch)
    before = read_checkpoint(current)
    assert (before.folder, before.config, float(before.tensors["w"][0])) == (old, {"value": 1.0}, 1.0)
    after = read_checkpoint(current)
    assert (after.folder, after.config, float(after.tensors["w"][0])) == (new, {"value": 2.0}, 2.0)


def test_no_torn_read_beside_a_writer(tmp_path: Path) -> None:
    """The trainer that does it wrong, and writes over the file: each read is whole or refused."""
    path = write(tmp_path, 0.0)
    contents = [safetensors.torch.save({"w": torch.full((N,), float(value))}) for value in range(8)]
    stop = threading.Event()

    def write_over() -> None:
        with path.open("r+b", buffering=0) as file:
            while not stop.wait(0.001):
                for content in contents:
                    for start in range(0, len(content), 1024):
                        os.pwrite(file.fileno(), content[start : start + 1024], start)
                        if stop.is_set():
                            return

    writer = threading.Thread(target=write_over)
    writer.start()
    try:
        outcomes = [_torn(tmp_path) for _ in range(30)]
    finally:
        stop.set()
        writer.join()
    assert "torn" not in outcomes


def _torn(folder: Path) -> str:
    try:
        tensor = read_checkpoint(folder).tensors["w"]
    except RequestError as error:
        assert error.code == "weights_changed"
        return "refused"
    return "whole" if bool((tensor == tensor[0]).all()) else "torn"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "cannot be opened" in refused(tmp_path / "missing").message
    assert "is not a folder" in refused(write(tmp_path, 1.0)).message
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert refused(loop).status == 400


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\0")
    assert "neither model.safetensors nor" in refused(tmp_path).message


def test_a_single_file_beside_shards_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write(tmp_path, 1.0)
    assert "both model.safetensors and" in refused(tmp_path).message


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"garbage, and more of it", "not a whole safetensors file"),
        (safetensors.torch.save({"w": torch.ones(9)})[:-1], "not a whole safetensors file"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    error = refused(tmp_path)
    assert str(path) in error.message and problem in error.message
    assert error.status == 400


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    assert "model.safetensors" in refused(tmp_path).message


def test_a_pipe_does_not_hold_the_engine_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "is not a file" in refused(tmp_path).message


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        (None, "has no weight_map"),
        ({}, "has no weight_map"),
        ({"a": 1}, "not the name of a file"),
        ({"a": "../model-1.safetensors"}, "not the name of a file"),
        ({"a": "model-1.safetensors", "c": "model-2.safetensors"}, "model-2.safetensors lacks c"),
        ({"a": "model-1.safetensors", "b": "model-3.safetensors"}, "model-3.safetensors cannot be read"),
        ({"a": "model-1.safetensors", "b": "model-1.safetensors"}, "model-1.safetensors lacks b"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path: Path, weight_map: object, problem: str) -> None:
    write_sharded(tmp_path)
    write_index(tmp_path, weight_map)
    assert problem in refused(tmp_path).message


def test_a_tensor_that_the_index_does_not_list_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    both = {"b": torch.ones(1), "c": torch.ones(1)}
    (tmp_path / "model-2.safetensors").write_bytes(safetensors.torch.save(both))
    assert "model-2.safetensors has c, which the index does not say" in refused(tmp_path).message


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_an_index_or_config_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    write_sharded(tmp_path).write_text(content)
    assert "model.safetensors.index.json" in refused(tmp_path).message
    (tmp_path / "config.json").write_text(content)
    assert "config.json" in refused(tmp_path).message
