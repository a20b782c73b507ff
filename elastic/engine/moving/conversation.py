"""A conversation's KV on its way to another engine: safetensors with a description in the metadata.

The form is `gyre-kv` 1: the tensors `kv` [layers, 2, kv_heads, n, head_dim] and `ids` [n], where
`kv[:, 0]` are keys (rotated) and `kv[:, 1]` values; the rest is JSON under the metadata key `gyre`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from gyre.elastic.engine.request import SamplingParams, Span
from gyre.elastic.engine.weights import blob
from gyre.proxy.errors import RequestError

FORMAT = "gyre-kv"
FORMAT_VERSION = 1
KV_DTYPES = (torch.float32, torch.bfloat16)
HINT = "continue from the ids alone: the KV is then computed anew"
SOURCE = "the conversation's KV"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a moved request stood. For information: a continuation names ids and sampling itself."""

    n_prompt: int
    output_ids: tuple[int, ...]
    """All that was sampled, the last one, whose KV is not computed yet, included."""
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    output_spans: tuple[Span, ...]
    """Versions over output positions."""
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConversationKV:
    """The keys and values of a conversation's first n tokens."""

    ids: NDArray[np.int64]
    """[n]"""
    kv: Tensor
    """[layers, 2, kv_heads, n, head_dim], contiguous, fp32 or bf16."""
    spans: tuple[Span, ...]
    """Which version computed which positions; together exactly [0, n)."""
    digests: Mapping[str, str]
    """Of the weights of each version in `spans`."""
    model: str
    """The name that the exporting engine serves it under."""
    progress: Progress | None = None
    """Of the request that was moved; None when the KV was asked for by ids."""

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_bytes(self) -> int:
        return self.kv.numel() * self.kv.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class KVIdentity:
    """What an engine's own KV looks like: KV of another model is of no use to it."""

    digest: str
    """Of the current weights."""
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    vocab_size: int
    max_positions: int


class _SpanWire(msgspec.Struct, forbid_unknown_fields=True):
    version: str
    start: int
    end: int


class _ProgressWire(msgspec.Struct, forbid_unknown_fields=True):
    n_prompt: Annotated[int, msgspec.Meta(ge=1)]
    output_ids: list[Annotated[int, msgspec.Meta(ge=0)]]
    logprobs: list[float]
    sampling_logprobs: list[float]
    output_spans: list[_SpanWire]
    sampling: SamplingParams


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON in the metadata."""

    format: str
    format_version: int
    model: str
    spans: list[_SpanWire]
    digests: dict[str, str]
    checksum: str
    """xxh3_128 of the tensors' bytes, in hex: KV that changed on its way would spoil many answers."""
    progress: _ProgressWire | None = None


def pieces(conversation: ConversationKV) -> tuple[bytes | memoryview, ...]:
    """The blob's parts, to be sent one after the other: nothing is copied."""
    kv = conversation.kv.detach().cpu().contiguous()
    ids = torch.from_numpy(np.ascontiguousarray(conversation.ids))
    wire = _wire(conversation, _checksum(ids, kv))
    return blob.pieces({"kv": kv, "ids": ids}, {"gyre": msgspec.json.encode(wire).decode()})


def encode(conversation: ConversationKV) -> bytes:
    return b"".join(pieces(conversation))


def decode(data: bytes | bytearray, limit_bytes: int) -> ConversationKV:
    """What `pieces` gave, checked whole; RequestError 400 for anything else, 413 above the limit.

    `kv` is a view of a bytearray and of a copy of bytes.
    """
    if len(data) > limit_bytes:
        raise too_large(len(data), limit_bytes)
    if not data:
        raise _wrong("it is empty")
    writable = data if isinstance(data, bytearray) else bytearray(data)
    parsed = blob.parse(torch.frombuffer(writable, dtype=torch.uint8), SOURCE)
    wire = _read_wire(parsed.metadata)
    ids, kv = _tensors(parsed.tensors)
    if _checksum(torch.from_numpy(ids), kv) != wire.checksum:
        raise _wrong("it changed on its way: its checksum is another")
    spans = _spans(wire.spans, len(ids), "its spans")
    _require_digests(spans, wire.digests)
    progress = _progress(wire.progress, ids) if wire.progress else None
    return ConversationKV(
        ids=ids, kv=kv, spans=spans, digests=wire.digests, model=wire.model, progress=progress
    )


def too_large(size: int, limit_bytes: int) -> RequestError:
    return RequestError(
        f"{SOURCE} has {size:,} bytes, the limit is {limit_bytes:,}", 413, "kv_too_large", HINT
    )


def refusal(conversation: ConversationKV, identity: KVIdentity) -> RequestError | None:
    """Why this engine cannot use it (409), if it cannot. Spans of older versions are no reason."""
    layers, _, kv_heads, n, head_dim = conversation.kv.shape
    newest = conversation.digests[conversation.spans[-1].version]
    theirs = (layers, kv_heads, head_dim)
    ours = (identity.layers, identity.kv_heads, identity.head_dim)
    if theirs != ours:
        return _refused(f"is of another model: (layers, kv_heads, head_dim) are {theirs}, here {ours}")
    if conversation.kv.dtype != identity.dtype:
        return _refused(f"is {conversation.kv.dtype}, this engine computes in {identity.dtype}")
    if not newest or newest != identity.digest:
        return _refused(f"was computed by other weights: {newest or 'unknown'}, here {identity.digest}")
    if int(conversation.ids.max()) >= identity.vocab_size:
        return _refused(f"has ids above the vocabulary of {identity.vocab_size:,}")
    if n > identity.max_positions:
        return _refused(f"has {n:,} tokens, more than the {identity.max_positions:,} of this engine")
    return None


def _checksum(ids: Tensor, kv: Tensor) -> str:
    digest = xxhash.xxh3_128()
    for tensor in (ids, kv):
        digest.update(blob.raw(tensor.contiguous()))
    return digest.hexdigest()


def _wire(conversation: ConversationKV, checksum: str) -> _Wire:
    progress = conversation.progress
    return _Wire(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        model=conversation.model,
        spans=_span_wires(conversation.spans),
        digests=dict(conversation.digests),
        checksum=checksum,
        progress=_progress_wire(progress) if progress else None,
    )


def _progress_wire(progress: Progress) -> _ProgressWire:
    return _ProgressWire(
        n_prompt=progress.n_prompt,
        output_ids=list(progress.output_ids),
        logprobs=list(progress.logprobs),
        sampling_logprobs=list(progress.sampling_logprobs),
        output_spans=_span_wires(progress.output_spans),
        sampling=progress.sampling,
    )


def _span_wires(spans: Sequence[Span]) -> list[_SpanWire]:
    return [_SpanWire(version=span.version, start=span.start, end=span.end) for span in spans]


def _read_wire(metadata: Mapping[str, str]) -> _Wire:
    if "gyre" not in metadata:
        raise _wrong("it does not describe itself")
    try:
        wire = msgspec.json.decode(metadata["gyre"], type=_Wire)
    except msgspec.DecodeError as error:
        raise _wrong(f"its description is wrong: {error}") from None
    if (wire.format, wire.format_version) != (FORMAT, FORMAT_VERSION):
        raise _wrong(f"its format is {wire.format} {wire.format_version}, not {FORMAT} {FORMAT_VERSION}")
    return wire


def _tensors(tensors: Mapping[str, Tensor]) -> tuple[NDArray[np.int64], Tensor]:
    if sorted(tensors) != ["ids", "kv"]:
        raise _wrong(f"it has the tensors {sorted(tensors)}, not ids and kv")
    ids, kv = tensors["ids"], tensors["kv"]
    if ids.dtype != torch.int64 or ids.ndim != 1 or not ids.numel():
        raise _wrong(f"its ids are {ids.dtype} of the shape {list(ids.shape)}")
    if int(ids.min()) < 0:
        raise _wrong("it has ids below 0")
    if kv.dtype not in KV_DTYPES:
        raise _wrong(f"its kv is {kv.dtype}")
    if kv.ndim != 5 or not kv.numel() or kv.shape[1] != 2 or kv.shape[3] != ids.numel():
        raise _wrong(f"its kv has the shape {list(kv.shape)} for {ids.numel():,} ids")
    return ids.numpy(), kv


def _spans(wires: Sequence[_SpanWire], n: int, what: str) -> tuple[Span, ...]:
    at = 0
    for wire in wires:
        if not wire.version or wire.start != at or wire.end <= at:
            raise _wrong(f"{what} do not follow each other")
        at = wire.end
    if at != n:
        raise _wrong(f"{what} end at {at:,} of {n:,}")
    return tuple(Span(wire.version, wire.start, wire.end) for wire in wires)


def _require_digests(spans: Sequence[Span], digests: Mapping[str, str]) -> None:
    unknown = sorted({span.version for span in spans} - digests.keys())
    if unknown:
        raise _wrong(f"it has no digest of the weights of {', '.join(unknown)}")


def _progress(wire: _ProgressWire, ids: NDArray[np.int64]) -> Progress:
    n_output = len(wire.output_ids)
    if len(wire.logprobs) != n_output or len(wire.sampling_logprobs) != n_output:
        raise _wrong(f"it has not as many log-probabilities as its {n_output:,} output ids")
    covered = ids[wire.n_prompt :]
    if len(covered) > n_output or covered.tolist() != wire.output_ids[: len(covered)]:
        raise _wrong("its output ids are not those that the KV is of")
    return Progress(
        n_prompt=wire.n_prompt,
        output_ids=tuple(wire.output_ids),
        logprobs=tuple(wire.logprobs),
        sampling_logprobs=tuple(wire.sampling_logprobs),
        output_spans=_spans(wire.output_spans, n_output, "its output spans"),
        sampling=wire.sampling,
    )


def _wrong(problem: str) -> RequestError:
    return RequestError(f"{SOURCE} cannot be read: {problem}", code="bad_kv", hint=HINT)


def _refused(problem: str) -> RequestError:
    return RequestError(f"{SOURCE} {problem}", 409, "kv_refused", HINT)
