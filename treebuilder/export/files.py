"""Files that appear whole or not at all, written part by part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from gyre.treebuilder.errors import TreeError, unwritable

Record = dict[str, Any]
VALUES = 8_000_000
"""Of list columns in a row group: what of a Parquet file is in memory at a time."""


@contextmanager
def whole_file(out: Path, force: bool) -> Iterator[Path]:
    """A path to write to; it takes the name `out` when all went well."""
    with _writing(out):
        if out.is_dir():
            raise TreeError(f"`{out}` is a folder", "name a file")
        if out.exists() and not out.is_file():
            # A rename would put a file in the place of a device.
            raise TreeError(f"`{out}` is no file", "name a file, and copy it to where it is wanted")
        _refuse(out, force)
        temporary = _beside(out)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(out: Path, force: bool, suffix: str) -> Iterator[Path]:
    """The same for a folder of files that end in `suffix`; one with anything else is never replaced."""
    with _writing(out):
        _refuse(out, force)
        if out.exists() and not (out.is_dir() and all(path.name.endswith(suffix) for path in out.iterdir())):
            raise TreeError(f"`{out}` holds other things than `{suffix}` files", "name another folder")
        temporary = _beside(out)
        temporary.mkdir()
        try:
            yield temporary
            if out.exists():
                shutil.rmtree(out)
            os.replace(temporary, out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Says what could not be written. Files that are read tell themselves when they cannot be."""
    try:
        yield
    except OSError as problem:
        raise unwritable(out, problem) from problem


def _refuse(out: Path, force: bool) -> None:
    if out.exists() and not force:
        raise TreeError(f"`{out}` is there already", "name another path, or replace it with `--force`")


def _beside(out: Path) -> Path:
    """In the same folder, so that the last step is a rename."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent / f".{out.name}.{os.getpid()}.tmp"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_lines(path: Path, records: Iterable[Record]) -> None:
    """JSON Lines. A float that is no number is null, as JSON has none."""
    with path.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))


def write_table(path: Path, schema: pa.Schema, records: Iterable[Record]) -> None:
    """Parquet, a row group of bounded size at a time. A float that is no number is null."""
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(records):
            columns = [_column([record[f.name] for record in batch], f.type) for f in schema]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    values = 0
    for record in records:
        batch.append(record)
        values += sum(len(value) for value in record.values() if isinstance(value, np.ndarray))
        if values >= VALUES:
            yield batch
            batch, values = [], 0
    if batch:
        yield batch


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not isinstance(values[0], np.ndarray):
        return pa.array(values, kind)
    offsets = np.cumsum([0, *map(len, values)])
    flat = pa.array(np.concatenate(values), kind.value_type, from_pandas=True)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=kind)


def write_array(path: Path, items: Iterable[Any], encode: Callable[[Any], bytes]) -> None:
    """One msgpack array, item by item; how many they are is filled in at the end."""
    with path.open("w+b") as file:
        file.write(b"\xdd\0\0\0\0")
        count = 0
        for item in items:
            file.write(encode(item))
            count += 1
        file.seek(1)
        file.write(count.to_bytes(4, "big"))
