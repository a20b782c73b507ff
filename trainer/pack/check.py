"""What holds of every piece."""

from __future__ import annotations

import numpy as np

from gyre.trainer.pack.piece import Piece


def check_piece(piece: Piece) -> None:
    """Raise ValueError with what is wrong. A few array operations: cheap beside any pass."""
    size, targets = len(piece), len(piece.source_K)
    for tokens in (piece.position_ids_N, piece.parent_N, piece.tout_N):
        _require(len(tokens) == size, "arrays of tokens differ in length")
    for values in (piece.label_K, piece.target_K):
        _require(len(values) == targets, "arrays of targets differ in length")
    _check_tree(piece)
    inside = (piece.source_K >= 0) & (piece.source_K < size)
    _require(bool(inside.all()), "a source is not a token of the piece")
    _require(len(np.unique(piece.target_K)) == targets, "a target is in it twice")
    _require(0 <= piece.context <= size, "more context than tokens")


def _check_tree(piece: Piece) -> None:
    index_N, parent_N, tout_N = np.arange(len(piece)), piece.parent_N, piece.tout_N
    _require(bool(((parent_N >= -1) & (parent_N < index_N)).all()), "a parent does not come before its child")
    inner = parent_N >= 0
    above = parent_N[inner]
    depth_N = np.zeros_like(piece.position_ids_N)
    depth_N[inner] = piece.position_ids_N[above] + 1
    _require(bool((piece.position_ids_N == depth_N).all()), "a position is not its parent's plus one")
    # Sizes that add up and intervals that nest: [i, tout) then is the subtree of i and nothing else.
    sizes = tout_N - index_N
    below = np.bincount(above, weights=sizes[inner], minlength=len(piece))
    _require(bool((sizes == below + 1).all()), "tout is not the size of the subtree")
    _require(bool((tout_N[inner] <= tout_N[above]).all()), "a subtree ends after its parent's")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not a piece: {what}")
