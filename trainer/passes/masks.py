"""What tokens of a piece see, cut into tiles of rows with the keys that any of them sees.

One N x N mask would have attention compute what it then throws away: of a long path half, of many branches
nearly all. A tile has the path down to its first row and itself for keys, nothing else can be seen from it:
a key before the first row a with q < tout for some row q >= a is an ancestor of a.

Shapes: N tokens of a piece, R rows of a tile, L its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gyre.trainer.pack.piece import Bools, Ints, Piece
from gyre.trainer.pack.segments import Segment, segments

ROWS = 256
"""Of a tile at most, unless attention knows a way without a mask. On CPU 128 to 512 are equally fast."""
CALL = 4096
"""A further tile costs about as much time as so many pairs of a query and a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Tokens [start, end) of a piece, in depth-first order."""

    start: int
    end: int
    keys_L: Ints
    """Their indices, ascending; the last R are the rows themselves."""
    run: bool
    """Rows and keys are successive tokens of one path, so that only their distance decides."""
    plain: bool
    """A run from its root on, shorter than the window: every row sees all keys before it."""

    def __len__(self) -> int:
        return self.end - self.start


def tiles(piece: Piece, window: int | None, rows: int = ROWS, call: int = CALL) -> list[Tile]:
    """Together their rows are the piece's tokens. `window`: tokens seen at most, the token itself counted."""
    return _Cutter(piece, window, rows, call).cut()


def seen(piece: Piece, tile: Tile, window: int | None) -> Bools:
    """(R, L): which keys each row sees; k <= q < tout[k], and not further up than the window."""
    row_R1 = np.arange(tile.start, tile.end)[:, None]
    seen_RL: Bools = (tile.keys_L <= row_R1) & (row_R1 < piece.tout_N[tile.keys_L])
    if window is not None:
        depth_R1 = piece.position_ids_N[tile.start : tile.end, None]
        seen_RL &= depth_R1 - piece.position_ids_N[tile.keys_L] < window
    return seen_RL


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens [start, end) of a segment."""

    start: int
    end: int
    segment: Segment

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def depth(self) -> int:
        return self.segment.depth + self.start - self.segment.start


class _Cutter:
    def __init__(self, piece: Piece, window: int | None, rows: int, call: int) -> None:
        self._piece = piece
        self._window = window
        self._rows = rows
        self._call = call
        self._segments = segments(piece)
        self._parts = [part for segment in self._segments for part in self._split(segment)]

    def cut(self) -> list[Tile]:
        """Small parts beside each other make one tile while that costs less than two."""
        found: list[Tile] = []
        first = 0
        for index in range(1, len(self._parts) + 1):
            if index == len(self._parts) or not self._joins(first, index):
                found.append(self._tile(self._parts[first:index]))
                first = index
        return found

    def _split(self, segment: Segment) -> Iterator[_Part]:
        count = 1 if self._is_plain(segment) else -(-len(segment) // self._rows)
        cuts = [segment.start + len(segment) * cut // count for cut in range(count + 1)]
        return (_Part(start, end, segment) for start, end in pairwise(cuts))

    def _is_plain(self, segment: Segment) -> bool:
        """A sequence from its beginning, for which attention has a way without a mask."""
        return segment.parent < 0 and (self._window is None or len(segment) <= self._window)

    def _joins(self, first: int, index: int) -> bool:
        head, added = self._parts[first], self._parts[index]
        rows, more = added.start - head.start, len(added)
        if rows + more > self._rows:
            return False
        apart = rows * (head.depth + rows) + more * (added.depth + more) + self._call
        return (rows + more) * (head.depth + rows + more) <= apart

    def _tile(self, own: Sequence[_Part]) -> Tile:
        start, end = own[0].start, own[-1].end
        keys_L = np.concatenate([self._above(own[0]), np.arange(start, end)])
        if self._window is not None:
            keys_L = keys_L[self._reached(start, end, keys_L)]
        run = len(own) == 1
        return Tile(
            start=start, end=end, keys_L=keys_L, run=run, plain=run and self._is_plain(own[0].segment)
        )

    def _above(self, part: _Part) -> Ints:
        """The path down to it, without it."""
        parts = [np.arange(part.segment.start, part.start)]
        at = part.segment.parent
        while at >= 0:
            parts.append(np.arange(self._segments[at].start, self._segments[at].end))
            at = self._segments[at].parent
        return np.concatenate(parts[::-1])

    def _reached(self, start: int, end: int, keys_L: Ints) -> Bools:
        """Keys that are within the window of the least deep row that they are on the path of."""
        assert self._window is not None
        least_R = np.minimum.accumulate(self._piece.position_ids_N[start:end])
        last_L = np.minimum(self._piece.tout_N[keys_L], end) - 1
        near_L: Bools = least_R[last_L - start] - self._piece.position_ids_N[keys_L] < self._window
        return near_L | (keys_L >= start)
