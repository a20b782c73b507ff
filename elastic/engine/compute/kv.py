"""The keys and values of one sequence, in one tensor that grows in place.

One tensor for each sequence, not a pool of pages: an append writes in place, a prefix is a slice, and
an export is one copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gyre.elastic.engine.request import Span

GRAIN = 64
"""Capacities are multiples of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What one token's keys and values are like."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.heads * self.head_dim * self.dtype.itemsize

    def empty(self, tokens: int) -> torch.Tensor:
        """Uninitialised memory, (layers, 2, heads, tokens, head_dim)."""
        size = (self.layers, 2, self.heads, tokens, self.head_dim)
        return torch.empty(size, dtype=self.dtype, device=self.device)


class SequenceKV:
    """Keys and values of positions [0, length), and which version computed each."""

    def __init__(self, shape: KVShape, capacity: int = 0) -> None:
        self.shape = shape
        self.length = 0
        self._ends: list[tuple[str, int]] = []
        self.catch_up: Callable[[], None] | None = None
        """Writes positions that were computed into another memory; called before this one is touched."""
        self._hold(shape.empty(rounded(capacity)))

    def _hold(self, data: torch.Tensor) -> None:
        self._data = data
        self._layers = data.unbind(0)
        self.capacity = data.shape[3]

    @property
    def data(self) -> torch.Tensor:
        """(layers, 2, heads, capacity, head_dim), to read and to write."""
        self._settle()
        return self._data

    @property
    def layers(self) -> tuple[torch.Tensor, ...]:
        """A view of `data` for each layer: made once, read at every step."""
        self._settle()
        return self._layers

    def _settle(self) -> None:
        if self.catch_up is not None:
            catch_up, self.catch_up = self.catch_up, None
            catch_up()

    @property
    def nbytes(self) -> int:
        return self.capacity * self.shape.token_bytes

    def reserve(self, tokens: int) -> None:
        """Make room for positions [0, tokens), rounded up."""
        if tokens > self.capacity:
            data = self.shape.empty(rounded(tokens))
            data[:, :, :, : self.length] = self.data[:, :, :, : self.length]
            self._hold(data)

    def advance(self, tokens: int, version: str) -> None:
        """The next `tokens` positions were written with the weights of `version`."""
        self.length += tokens
        if self._ends and self._ends[-1][0] == version:
            self._ends.pop()
        self._ends.append((version, self.length))

    def truncate(self, tokens: int) -> None:
        """Forget all positions from `tokens` on."""
        self._ends = [(span.version, span.end) for span in self.spans(tokens)]
        self.length = min(self.length, tokens)

    def trim(self) -> None:
        """Give back room that is not used, where it is worth a copy."""
        unused = self.capacity - rounded(self.length)
        if unused > max(2 * GRAIN, self.length // 4):
            data = self.shape.empty(rounded(self.length))
            data[:, :, :, : self.length] = self.data[:, :, :, : self.length]
            self._hold(data)

    def copy(self, tokens: int, capacity: int = 0) -> SequenceKV:
        """The first `tokens` positions in memory of their own."""
        other = SequenceKV(self.shape, max(tokens, capacity))
        other.data[:, :, :, :tokens] = self.data[:, :, :, :tokens]
        for span in self.spans(tokens):
            other.advance(span.end - span.start, span.version)
        return other

    def spans(self, tokens: int | None = None) -> tuple[Span, ...]:
        """Who computed the first `tokens` positions; all of them by default."""
        limit = self.length if tokens is None else min(tokens, self.length)
        starts = [0, *(end for _, end in self._ends)]
        pairs = zip(self._ends, starts, strict=False)
        return tuple(
            Span(version, start, min(end, limit)) for (version, end), start in pairs if start < limit
        )

    def only(self, version: str) -> bool:
        """Whether nothing in it is of other weights."""
        return all(other == version for other, _ in self._ends)


def whole_grains(tokens: int) -> int:
    """The largest capacity of at most so many tokens."""
    return tokens // GRAIN * GRAIN


def rounded(tokens: int) -> int:
    return -(-tokens // GRAIN) * GRAIN
