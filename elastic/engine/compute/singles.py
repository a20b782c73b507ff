"""Attention of sequences that compute one token each: most of what an engine does.

A call of torch costs more than the work on a short sequence, so what can be shared by layers or by
sequences is.

Shapes: S sequences, K key heads, G query heads of each, D head_dim, L keys of one sequence, N the most
that one has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import ref

import torch
import torch.nn.functional as F

from gyre.elastic.engine.compute.kv import SequenceKV

FEW = 4
"""Fewer sequences than this are not worth gathering."""
SHORT_BYTES = 128 << 10
"""Of keys and values of one sequence in one layer: for longer ones the work counts, not the calls."""
ROOM = 32
"""Tokens that can be appended before sequences are gathered anew."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` new tokens of one sequence, at `position` and after."""

    kv: SequenceKV
    """With room for them; written by the forward pass, advanced by who called it."""
    position: int
    count: int


class Singles:
    """The single tokens of one forward pass, one by one: any model, any length."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        news = [chunk.kv.data.select(3, chunk.position).unbind(0) for chunk in chunks]
        self._slots = list(zip(*news, strict=True))
        """By layer, for each sequence where the new token goes: (2, K, D)."""
        self._seen: dict[int | None, list[tuple[_Seen, ...]]] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def attend(
        self, layer: int, query_SKGD: torch.Tensor, new_2KSD: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """(S, K, G, D), with the new keys and values written; the query is scaled already."""
        for slot_2KD, new_2KD in zip(self._slots[layer], new_2KSD.unbind(2), strict=True):
            slot_2KD.copy_(new_2KD)
        # Half precision is left to the fused kernel, which keeps its sums in fp32.
        one = _attend if query_SKGD.dtype == torch.float32 else _attend_fused
        seen = self._seen_from(layer, window)
        return torch.stack([one(*pair) for pair in zip(query_SKGD.unbind(0), seen, strict=True)])

    def _seen_from(self, layer: int, window: int | None) -> tuple[_Seen, ...]:
        # For all layers at once: a view costs as much as a small product.
        if window not in self._seen:
            views = [_seen(chunk, window) for chunk in self._chunks]
            self._seen[window] = list(zip(*views, strict=True))
        return self._seen[window][layer]


_Seen = tuple[torch.Tensor, torch.Tensor]
"""Views of a sequence's keys, (K, D, L), and values, (K, L, D), in one layer."""


def _seen(chunk: Chunk, window: int | None) -> Iterator[_Seen]:
    """What its token sees, by layer."""
    first = first_seen(chunk.position + 1, window)
    keys, values = chunk.kv.data.narrow(3, first, chunk.position + 1 - first).unbind(1)
    return zip(keys.mT.unbind(0), values.unbind(0), strict=True)


def first_seen(length: int, window: int | None) -> int:
    """The first key that the last of `length` positions sees: a window counts the token itself."""
    return 0 if window is None else max(0, length - window)


def _attend(query_KGD: torch.Tensor, seen: _Seen) -> torch.Tensor:
    # For a single query in fp32 half the time of torch's fused kernel.
    keys_KDL, values_KLD = seen
    return torch.bmm(torch.softmax(torch.bmm(query_KGD, keys_KDL), -1), values_KLD)


def _attend_fused(query_KGD: torch.Tensor, seen: _Seen) -> torch.Tensor:
    keys_KDL, values_KLD = seen
    # The heads of a group stand as queries of one key head: no mask, so each sees all keys.
    return F.scaled_dot_product_attention(query_KGD[None], keys_KDL.mT[None], values_KLD[None], scale=1.0)[0]


class Gatherer:
    """Keeps sequences gathered from one forward pass to the next, as long as they remain the same."""

    def __init__(self) -> None:
        self._last: Gathered | None = None

    def gather(self, chunks: Sequence[Chunk]) -> Gathered | None:
        """The single tokens of the next forward pass; None: they are better computed one by one."""
        worth = _worth_gathering(chunks)
        if self._last is not None:
            if worth and self._last.followed_by(chunks):
                return self._last
            self._last.release()
        self._last = Gathered(chunks) if worth else None
        return self._last


def _worth_gathering(chunks: Sequence[Chunk]) -> bool:
    if len(chunks) < FEW:
        return False
    shape = chunks[0].kv.shape
    longest = max(chunk.position for chunk in chunks) + 1
    layer_bytes = longest * shape.token_bytes // shape.layers
    return shape.dtype == torch.float32 and layer_bytes <= SHORT_BYTES


class Gathered:
    """Copies of short sequences side by side, their ends aligned: two products do for all of them.

    New keys and values are here alone until somebody reads the sequence's own memory, which catches up then.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        shape = chunks[0].kv.shape
        self._kvs = [ref(chunk.kv) for chunk in chunks]
        self._positions = [chunk.position for chunk in chunks]
        self._end = max(self._positions)
        """Where the new tokens go."""
        size = (shape.layers, 2, len(chunks), shape.heads, self._end + ROOM, shape.head_dim)
        self._held = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self._layers = self._held.unbind(0)
        for chunk, place in zip(chunks, self._held.unbind(2), strict=True):
            gap = self._end - chunk.position
            place.narrow(3, 0, gap).zero_()
            place.narrow(3, gap, chunk.position).copy_(chunk.kv.data.narrow(3, 0, chunk.position))
        self._mask_S11N: torch.Tensor | None = None
        if min(self._positions) < self._end:
            self._mask_S11N = _mask(self._positions, self._end + ROOM, shape.device)
        self._owed = list(self._positions)
        """The first position of each sequence that its own memory does not have."""
        self._hand_backs = [partial(self._hand_back, place) for place in range(len(chunks))]
        self._owe()

    def __len__(self) -> int:
        return len(self._positions)

    def followed_by(self, chunks: Sequence[Chunk]) -> bool:
        """Whether these are the next tokens of the same sequences; then they are what is computed next."""
        positions = [position + 1 for position in self._positions]
        if (
            self._end + 1 == self._held.shape[4]
            or positions != [chunk.position for chunk in chunks]
            or any(kv() is not chunk.kv for kv, chunk in zip(self._kvs, chunks, strict=True))
        ):
            return False
        self._positions = positions
        self._end += 1
        self._owe()
        return True

    def release(self) -> None:
        """Hand back whatever is owed; the last that is asked of it."""
        hand_backs, self._hand_backs = self._hand_backs, []  # they refer to it
        for hand_back in hand_backs:
            hand_back()

    def _owe(self) -> None:
        for kv_ref, hand_back in zip(self._kvs, self._hand_backs, strict=True):
            kv = kv_ref()
            assert kv is not None  # a chunk holds it
            kv.catch_up = hand_back

    def _hand_back(self, place: int) -> None:
        """Write what a sequence's own memory lacks."""
        kv, owed, end = self._kvs[place](), self._owed[place], self._positions[place] + 1
        if kv is not None and owed < end:
            self._owed[place], kv.catch_up = end, None
            first = self._end - self._positions[place] + owed
            news = self._held.select(2, place).narrow(3, first, end - owed)
            kv.data.narrow(3, owed, end - owed).copy_(news)

    def attend(
        self, layer: int, query_SKGD: torch.Tensor, new_2KSD: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """As `Singles.attend`, without a write to the sequences' own memory."""
        held_2SKND = self._layers[layer]
        held_2SKND.select(3, self._end).copy_(new_2KSD.transpose(1, 2))
        first = first_seen(self._end + 1, window)
        keys, values = held_2SKND.narrow(3, first, self._end + 1 - first).flatten(1, 2).unbind(0)
        scores = torch.bmm(query_SKGD.flatten(0, 1), keys.mT)
        if self._mask_S11N is not None:
            scores.view(*query_SKGD.shape[:3], -1).add_(self._mask_S11N[..., first : self._end + 1])
        return torch.bmm(torch.softmax(scores, -1), values).view(query_SKGD.shape)


def _mask(positions: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """(S, 1, 1, N): minus infinity before the beginning of a sequence."""
    gaps_S1 = max(positions) - torch.tensor(positions, device=device)[:, None]
    empty_SN = torch.arange(size, device=device) < gaps_S1
    return torch.where(empty_SN, -torch.inf, 0.0)[:, None, None]
