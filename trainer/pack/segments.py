"""Runs of a piece in which nothing branches: what `dfs` computes at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gyre.trainer.pack.piece import Bools, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens [start, end) of a piece, each the parent of the next."""

    start: int
    end: int
    parent: int
    """Index of the segment before; -1: it begins a root."""
    children: tuple[int, ...]
    depth: int
    """Position of its first token: tokens before it on the path."""

    def __len__(self) -> int:
        return self.end - self.start


def segments(piece: Piece, limit: int | None = None) -> list[Segment]:
    """All of them in depth-first order, parents first; together they are the piece's tokens.

    Runs are as long as they can be; one of more than `limit` tokens is cut into the fewest parts of about
    equal size, so that none is much shorter than it has to be.
    """
    starts, ends = _bounds(piece, limit)
    firsts = piece.parent_N[starts]
    parents = np.where(firsts < 0, -1, np.searchsorted(starts, firsts, side="right") - 1).tolist()
    children: list[list[int]] = [[] for _ in parents]
    for index, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(index)
    depths = piece.position_ids_N[starts].tolist()
    return [
        Segment(start=start, end=end, parent=parent, children=tuple(own), depth=depth)
        for start, end, parent, own, depth in zip(
            starts.tolist(), ends.tolist(), parents, children, depths, strict=True
        )
    ]


def _bounds(piece: Piece, limit: int | None) -> tuple[np.typing.NDArray[np.int64], ...]:
    starts = np.flatnonzero(_begins(piece))
    ends = np.append(starts[1:], len(piece)) if len(starts) else starts
    if limit is not None and len(starts):
        cuts = [_parts(start, end, limit) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        starts = np.concatenate(cuts)
        ends = np.append(starts[1:], len(piece))
    return starts, ends


def _parts(start: int, end: int, limit: int) -> np.typing.NDArray[np.int64]:
    parts = -((start - end) // limit)
    return start + np.arange(parts, dtype=np.int64) * (end - start) // parts


def _begins(piece: Piece) -> Bools:
    """Which tokens do not continue the one before them alone."""
    children_N = np.bincount(piece.parent_N + 1, minlength=len(piece) + 1)[1:]
    jumps: Bools = piece.parent_N != np.arange(-1, len(piece) - 1)
    return jumps | (piece.parent_N < 0) | (children_N[piece.parent_N] > 1)
