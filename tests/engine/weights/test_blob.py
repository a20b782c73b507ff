"""Safetensors in memory: the package reads what we write, we read what the package writes."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gyre.elastic.engine.weights import blob
from gyre.proxy.errors import RequestError

SHAPES = st.lists(st.integers(0, 4), max_size=3)
TENSORS = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name != "__metadata__"),
    st.tuples(SHAPES, st.sampled_from(sorted(blob.DTYPES))),
    max_size=5,
)


def tensor(shape: list[int], dtype: str) -> Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(blob.DTYPES[dtype])


def memory(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@given(described=TENSORS, metadata=st.dictionaries(st.text(), st.text(), max_size=2))
def test_the_package_reads_what_we_write_and_so_do_we(
    described: dict[str, tuple[list[int], str]], metadata: dict[str, str]
) -> None:
    tensors = {name: tensor(*one) for name, one in described.items()}
    data = b"".join(blob.pieces(tensors, metadata))
    assert same(safetensors.torch.load(data), tensors)
    ours = blob.parse(memory(data), "it")
    assert same(ours.tensors, tensors)
    assert ours.metadata == metadata


@given(described=TENSORS)
def test_what_the_package_writes_is_read(described: dict[str, tuple[list[int], str]]) -> None:
    tensors = {name: tensor(*one) for name, one in described.items()}
    assert same(blob.parse(memory(safetensors.torch.save(tensors)), "it").tensors, tensors)


def test_views_share_the_memory() -> None:
    data_N = memory(safetensors.torch.save({"a": torch.zeros(3)}))
    tensors = blob.parse(data_N, "it").tensors
    data_N[-4:] = torch.tensor([0, 0, 128, 63], dtype=torch.uint8)
    assert tensors["a"].tolist() == [0.0, 0.0, 1.0]


def test_a_tensor_that_lies_unaligned_is_read() -> None:
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "word": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
    }
    tensors = blob.parse(memory(written(header, b"\x07\x00\x00\x80\x3f")), "it").tensors
    assert (tensors["byte"].tolist(), tensors["word"].tolist()) == ([7], [1.0])


def written(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "shorter"),
        (b"PK\x03\x04 a zip file, say", "header does not fit"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "header does not fit"),
        (b"\x02\0\0\0\0\0\0\0[}", "not JSON"),
        (b"\x02\0\0\0\0\0\0\0[]", "not an object"),
        (written({"w": 3}, b""), "does not say what 'w' is"),
        (written({"w": ENTRY | {"data_offsets": [0]}}, b"\0" * 4), "does not say what 'w' is"),
        (written({"w": ENTRY | {"dtype": "F4"}}, b"\0" * 4), "type F4"),
        (written({"w": ENTRY | {"shape": [-1]}}, b"\0" * 4), "shape [-1]"),
        (written({"w": ENTRY | {"shape": [True]}}, b"\0" * 4), "shape [True]"),
        (written({"w": ENTRY | {"shape": [2]}}, b"\0" * 4), "'w' has 4 bytes"),
        (written({"w": ENTRY | {"data_offsets": [4, 8]}}, b"\0" * 8), "'w' does not begin"),
        (written({"w": ENTRY, "v": ENTRY}, b"\0" * 4), "'v' does not begin"),
        (written({"w": ENTRY}, b"\0" * 3), "has 3 bytes of tensors"),
        (written({"w": ENTRY}, b"\0" * 5), "has 5 bytes of tensors"),
        (written({"__metadata__": {"a": 1}}, b""), "metadata"),
    ],
)
def test_what_is_no_safetensors_file_is_refused_by_name(data: bytes, problem: str) -> None:
    with pytest.raises(RequestError) as refused:
        blob.parse(memory(data), "model.safetensors")
    assert refused.value.message.startswith("model.safetensors is not a whole safetensors file")
    assert problem in refused.value.message
    assert refused.value.status == 400


@given(
    cut=st.integers(0, 200), flips=st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), max_size=3)
)
def test_damage_is_refused_or_leaves_tensors_of_the_same_form(cut: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(safetensors.torch.save({"a": torch.ones(4), "b": torch.zeros(2, dtype=torch.int64)}))
    for at, value in flips:
        if at < len(data):
            data[at] = value
    try:
        tensors = blob.parse(memory(bytes(data[:cut])), "it").tensors
    except RequestError:
        return
    assert sum(one.numel() * one.itemsize for one in tensors.values()) <= len(data)
