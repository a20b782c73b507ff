"""What tokens of a piece see, cut into tiles of rows with the keys that any of them sees.

One N x N mask would have attention compute what it then throws away: of a long path half, of many branches
nearly all. A tile has the path down to its first row and itself for keys, nothing else can be seen from it:
a key before the first row a with q < tout for some row q >= a is an ancestor of a.

Shapes: N tokens of a piece, R rows of a tile, L its keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gyre.trainer.pack.piece import Bools, Ints, Piece
from gyre.trainer.pack.segments import Segment, segments

ROWS = 512
"""Of a tile at most. Measured on CPU: fewer cost more calls, more compute more pairs for nothing."""
CALL = 8192
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


class _Cutter:
    def __init__(self, piece: Piece, window: int | None, rows: int, call: int) -> None:
        self._piece = piece
        self._window = window
        self._rows = rows
        self._call = call
        self._segments = segments(piece, rows)

    def cut(self) -> list[Tile]:
        """Small segments beside each other make one tile while that costs less than two."""
        found: list[Tile] = []
        first = 0
        for index in range(1, len(self._segments) + 1):
            if index == len(self._segments) or not self._joins(first, index):
                found.append(self._tile(first, index))
                first = index
        return found

    def _joins(self, first: int, index: int) -> bool:
        head, added = self._segments[first], self._segments[index]
        rows, more = added.start - head.start, len(added)
        if rows + more > self._rows:
            return False
        apart = rows * (head.depth + rows) + more * (added.depth + more) + self._call
        return (rows + more) * (head.depth + rows + more) <= apart

    def _tile(self, first: int, stop: int) -> Tile:
        own = self._segments[first:stop]
        start, end = own[0].start, own[-1].end
        keys_L = np.concatenate([self._above(own[0]), np.arange(start, end)])
        if self._window is not None:
            keys_L = keys_L[self._reached(start, end, keys_L)]
        return Tile(start=start, end=end, keys_L=keys_L, run=len(own) == 1)

    def _above(self, segment: Segment) -> Ints:
        """The path down to a segment, without it."""
        parts = [np.zeros(0, np.int64)]
        at = segment.parent
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
