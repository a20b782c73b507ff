"""The safetensors form in memory, without a copy: views of what was read, pieces to be written.

The package `safetensors` reads from files by mapping them, and from bytes by copying them while it
holds the interpreter lock. A map is no use here (a file that shrinks under it kills the process, one
that is overwritten changes what was checked), and half a second of lock stops every stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import torch
from torch import Tensor

from gyre.proxy.errors import RequestError

LENGTH_BYTES = 8
"""The header's length stands first, little-endian."""
MAX_HEADER_BYTES = 100_000_000
"""What the package allows."""
ALIGNMENT = 8

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    tensors: dict[str, Tensor]
    """Views of the memory that was parsed."""
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def parse(memory_N: Tensor, source: str) -> Blob:
    """The tensors in `memory_N` (uint8, CPU); RequestError 400, which names `source`, for anything amiss."""
    header, data_N = _split(memory_N, source)
    metadata = header.pop("__metadata__", {})
    if not _is_texts(metadata):
        raise _damaged(source, "its metadata are not texts")
    entries = sorted((_entry(name, value, source) for name, value in header.items()), key=lambda e: e.start)
    _require_gapless(entries, data_N.numel(), source)
    return Blob(tensors={entry.name: _view(data_N, entry) for entry in entries}, metadata=metadata)


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes | memoryview, ...]:
    """What to write one after the other: the header, then each tensor (contiguous, CPU) as it lies in memory.

    Names go by falling size of element, so that every tensor lies aligned.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    at = 0
    for name, tensor in ordered:
        end = at + tensor.numel() * tensor.itemsize
        shape, offsets = list(tensor.shape), [at, end]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": offsets}
        at = end
    text = orjson.dumps(header)
    text += b" " * (-len(text) % ALIGNMENT)
    start = len(text).to_bytes(LENGTH_BYTES, "little") + text
    return (start, *(raw(tensor) for _, tensor in ordered))


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, uncopied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _split(memory_N: Tensor, source: str) -> tuple[dict[str, Any], Tensor]:
    if memory_N.numel() < LENGTH_BYTES:
        raise _damaged(source, "it is shorter than the length of a header")
    length = int.from_bytes(raw(memory_N[:LENGTH_BYTES]), "little")
    if length > min(memory_N.numel() - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise _damaged(source, "its header does not fit into it: it was cut off, or is of another form")
    end = LENGTH_BYTES + length
    try:
        header = orjson.loads(raw(memory_N[LENGTH_BYTES:end]))
    except orjson.JSONDecodeError as error:
        raise _damaged(source, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _damaged(source, "its header is not an object")
    return header, memory_N[end:]


def _entry(name: str, value: Any, source: str) -> _Entry:
    """One entry of the header, its types and its arithmetic checked."""
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise _damaged(source, f"it does not say what {name!r} is")
    if dtype not in DTYPES:
        raise _damaged(source, f"{name!r} has the type {dtype}, which is not supported")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise _damaged(source, f"{name!r} has the shape {shape}")
    if end - start != math.prod(shape) * DTYPES[dtype].itemsize:
        raise _damaged(source, f"{name!r} has {end - start:,} bytes, not what its shape needs")
    return _Entry(name=name, dtype=DTYPES[dtype], shape=tuple(shape), start=start, end=end)


def _require_gapless(entries: Iterable[_Entry], size: int, source: str) -> None:
    at = 0
    for entry in entries:
        if entry.start != at:
            raise _damaged(source, f"{entry.name!r} does not begin where the tensor before it ends")
        at = entry.end
    if at != size:
        raise _damaged(source, f"it has {size:,} bytes of tensors where its header says {at:,}")


def _view(data_N: Tensor, entry: _Entry) -> Tensor:
    part_N = data_N[entry.start : entry.end]
    if part_N.storage_offset() % entry.dtype.itemsize:
        part_N = part_N.clone()  # written by someone who does not align: it cannot be viewed in place
    return part_N.view(entry.dtype).reshape(entry.shape)


def _is_texts(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())


def _damaged(source: str, problem: str) -> RequestError:
    return RequestError(f"{source} is not a whole safetensors file: {problem}", code="bad_safetensors")
