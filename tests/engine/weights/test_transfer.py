"""A conversation's KV as bytes: nothing is lost on the way, nothing false gets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.elastic.engine.moving.conversation import (
    ConversationKV,
    KVIdentity,
    Progress,
    decode,
    encode,
    pieces,
    refusal,
)
from gyre.elastic.engine.request import SamplingParams, Span
from gyre.proxy.errors import RequestError

LIMIT = 1 << 20
LAYERS, HEADS, DIM = 2, 3, 4


def conversation(n: int = 6, dtype: torch.dtype = torch.float32, n_old: int = 2) -> ConversationKV:
    """`n_old` positions are of version 1, the rest of version 2."""
    generator = torch.Generator().manual_seed(n)
    old = (Span("1", 0, n_old),) if n_old else ()
    return ConversationKV(
        ids=np.arange(10, 10 + n, dtype=np.int64),
        kv=torch.randn(LAYERS, 2, HEADS, n, DIM, generator=generator).to(dtype),
        spans=(*old, Span("2", n_old, n)),
        digests={"1": "d1", "2": "d2"},
        model="tiny",
        progress=Progress(
            n_prompt=4,
            output_ids=tuple(range(14, 10 + n + 1)),
            logprobs=(-0.5,) * (n - 3),
            sampling_logprobs=(-0.25,) * (n - 3),
            output_spans=(Span("2", 0, n - 3),),
            sampling=SamplingParams(seed=7, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1),
        ),
    )


IDENTITY = KVIdentity(
    digest="d2",
    layers=LAYERS,
    kv_heads=HEADS,
    head_dim=DIM,
    dtype=torch.float32,
    vocab_size=100,
    max_positions=50,
)


@given(n=st.integers(5, 40), n_old=st.integers(0, 4), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_what_is_decoded_is_what_was_encoded(n: int, n_old: int, dtype: torch.dtype) -> None:
    sent = conversation(n, dtype, n_old)
    for data in (encode(sent), bytearray(encode(sent))):
        got = decode(data, LIMIT)
        assert got.ids.tolist() == sent.ids.tolist()
        assert got.kv.dtype == dtype and torch.equal(got.kv, sent.kv) and got.kv.is_contiguous()
        assert (got.spans, got.digests, got.model) == (sent.spans, sent.digests, sent.model)
        assert got.progress == sent.progress
        assert (got.n_tokens, got.n_bytes) == (n, sent.kv.numel() * dtype.itemsize)


def test_kv_without_a_request_is_told_as_such() -> None:
    assert decode(encode(replace(conversation(), progress=None)), LIMIT).progress is None


def test_pieces_are_the_memory_itself() -> None:
    sent = conversation()
    parts = pieces(sent)
    before = b"".join(parts)
    sent.kv.fill_(3.0)
    assert b"".join(parts) != before
    assert np.float32(3.0).tobytes() * sent.kv.numel() in b"".join(parts)


@pytest.mark.parametrize("place", [-1, -100, -6 * 8 - 1])
def test_a_blob_with_one_other_bit_is_refused(place: int) -> None:
    """Of the ids or of the KV: it would be found by many requests, and spoil their answers."""
    data = bytearray(encode(conversation()))
    data[place] ^= 1
    with pytest.raises(RequestError, match="checksum"):
        decode(data, LIMIT)


def test_a_view_into_a_larger_buffer_is_sent_whole() -> None:
    sent = conversation()
    roomy = torch.zeros(LAYERS, 2, HEADS, 64, DIM)
    roomy[:, :, :, :6] = sent.kv
    assert torch.equal(decode(encode(replace(sent, kv=roomy[:, :, :, :6])), LIMIT).kv, sent.kv)


def test_a_blob_above_the_limit_is_refused() -> None:
    data = encode(conversation())
    with pytest.raises(RequestError) as refused:
        decode(data, len(data) - 1)
    assert (refused.value.status, refused.value.code) == (413, "kv_too_large")


def rewritten(change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> bytes:
    """A sound blob, with its description and tensors as `change` leaves them."""
    data = encode(conversation())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    wire, tensors = json.loads(header["__metadata__"]["gyre"]), safetensors.torch.load(data)
    change(wire, tensors)
    return safetensors.torch.save(tensors, {"gyre": json.dumps(wire)})


def set_in(**values: Any) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], None]:
    return lambda wire, _: wire.update(values)


def set_progress(**values: Any) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], None]:
    return lambda wire, _: wire["progress"].update(values)


def tensors(**values: torch.Tensor) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], None]:
    return lambda _, kept: kept.update(values)


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_in(format="other"), "format is other"),
        (set_in(format_version=2), "format is gyre-kv 2"),
        (set_in(more=1), "more"),
        (set_in(model=None), "model"),
        (set_in(spans=[]), "spans end at 0 of 6"),
        (set_in(spans=[span("2", 0, 5)]), "spans end at 5 of 6"),
        (set_in(spans=[span("2", 0, 9)]), "spans end at 9 of 6"),
        (set_in(spans=[span("2", 1, 6)]), "do not follow"),
        (set_in(spans=[span("2", 0, 3), span("2", 4, 6)]), "do not follow"),
        (set_in(spans=[span("2", 0, 0), span("2", 0, 6)]), "do not follow"),
        (set_in(spans=[span("", 0, 6)]), "do not follow"),
        (set_in(spans=[span("3", 0, 6)]), "no digest of the weights of 3"),
        (set_progress(n_prompt=0), "n_prompt"),
        (set_progress(n_prompt=3), "not those that the KV is of"),
        (set_progress(output_ids=[14, 99, 16]), "not those that the KV is of"),
        (set_progress(logprobs=[-0.5]), "as many log-probabilities"),
        (set_progress(sampling_logprobs=[]), "as many log-probabilities"),
        (set_progress(output_spans=[span("2", 0, 1)]), "output spans end at 1 of 3"),
        (set_progress(sampling={}), "seed"),
        (tensors(ids=torch.arange(5)), "kv has the shape"),
        (tensors(ids=torch.arange(6, dtype=torch.int32)), "ids are torch.int32"),
        (tensors(ids=torch.arange(6).reshape(2, 3)), "of the shape [2, 3]"),
        (tensors(ids=torch.arange(-1, 5)), "ids below 0"),
        (tensors(ids=torch.empty(0, dtype=torch.int64)), "of the shape [0]"),
        (tensors(kv=torch.zeros(2, 2, 3, 6, 4, dtype=torch.float16)), "kv is torch.float16"),
        (tensors(kv=torch.zeros(2, 3, 3, 6, 4)), "kv has the shape"),
        (tensors(kv=torch.zeros(2, 2, 18, 4)), "kv has the shape"),
        (tensors(kv=torch.zeros(2, 2, 0, 6, 4)), "kv has the shape"),
        (tensors(more=torch.zeros(1)), "tensors"),
    ],
)
def test_a_false_blob_is_refused(
    change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None], problem: str
) -> None:
    with pytest.raises(RequestError, match="cannot be read") as refused:
        decode(rewritten(change), LIMIT)
    assert problem in refused.value.message
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\0" * 100, safetensors.torch.save({"kv": torch.zeros(1)}), encode(conversation())[:-1]],
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        decode(data, LIMIT)
    assert refused.value.status == 400


def test_a_sound_blob_is_accepted_whatever_its_older_spans() -> None:
    assert refusal(conversation(), IDENTITY) is None


@pytest.mark.parametrize(
    ("identity", "problem"),
    [
        (replace(IDENTITY, digest="d1"), "other weights: d2, here d1"),
        (replace(IDENTITY, layers=3), "another model"),
        (replace(IDENTITY, kv_heads=1), "another model"),
        (replace(IDENTITY, head_dim=8), "another model"),
        (replace(IDENTITY, dtype=torch.bfloat16), "computes in torch.bfloat16"),
        (replace(IDENTITY, vocab_size=15), "vocabulary of 15"),
        (replace(IDENTITY, max_positions=5), "more than the 5"),
    ],
)
def test_kv_of_another_engine_is_refused(identity: KVIdentity, problem: str) -> None:
    error = refusal(conversation(), identity)
    assert error is not None and problem in error.message
    assert (error.status, error.code) == (409, "kv_refused")


def test_unknown_weights_are_never_the_same() -> None:
    unknown = replace(conversation(), digests={"1": "d1", "2": ""})
    error = refusal(unknown, replace(IDENTITY, digest=""))
    assert error is not None and "other weights: unknown" in error.message
