"""Random access to list columns of Arrow tables, without a Python object per element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


class RaggedIds:
    """Rows of a chunked `list<int32>` or `list<float>` column as array views."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
        self._valid = [chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in column.chunks]
        self._offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self._values = [chunk.values.to_numpy(zero_copy_only=False) for chunk in column.chunks]

    def __getitem__(self, row: int) -> np.ndarray[Any, Any] | None:
        at = int(np.searchsorted(self._starts, row, "right")) - 1
        row -= int(self._starts[at])
        if not self._valid[at][row]:
            return None
        offsets = self._offsets[at]
        values: np.ndarray[Any, Any] = self._values[at][offsets[row] : offsets[row + 1]]
        return values


def values_of(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """A column as Python values; the stubs of `to_pylist` do not know which."""
    return list(column.to_pylist())


def packed(values: np.ndarray[Any, Any] | None) -> memoryview | bytes:
    """An array view as bytes."""
    if values is None or not len(values):
        return b""
    return memoryview(np.ascontiguousarray(values).data).cast("B")


def addresses(hashes: list[str] | None) -> bytes:
    """Hex addresses as one byte string of 16 bytes each."""
    return bytes.fromhex("".join(hashes or ()))
