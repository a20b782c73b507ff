"""What each target of a batch has before it, from the trees and from pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.piece import Piece
from tests.trainer.builders import sampled


def wanted(trees: Sequence[TrainTree]) -> list[tuple[int, ...]]:
    """Of each target, in `Targets`' order, all ids from the root up to itself."""
    found = []
    for tree, index, token in sampled(trees):
        ids, node = tree.nodes[index].token_ids[: token + 1].tolist(), tree.nodes[index].parent
        while node >= 0:
            ids = tree.nodes[node].token_ids.tolist() + ids
            node = tree.nodes[node].parent
        found.append(tuple(ids))
    return found


def computed(*pieces: Piece) -> dict[int, tuple[int, ...]]:
    """The same as pieces have it, walked token by token; a target that is computed twice fails."""
    found: dict[int, tuple[int, ...]] = {}
    for piece in pieces:
        for source, label, target in zip(piece.source_K, piece.label_K, piece.target_K, strict=True):
            assert int(target) not in found
            found[int(target)] = (*before(piece, int(source)), int(label))
    return found


def before(piece: Piece, token: int) -> tuple[int, ...]:
    """Ids from the root to the token."""
    ids = []
    while token >= 0:
        ids.append(int(piece.input_ids_N[token]))
        token = int(piece.parent_N[token])
    return tuple(ids[::-1])


def same(one: Piece, other: Piece) -> bool:
    """Token for token; targets may have other numbers."""
    pairs = [
        (one.input_ids_N, other.input_ids_N),
        (one.position_ids_N, other.position_ids_N),
        (one.parent_N, other.parent_N),
        (one.tout_N, other.tout_N),
        (one.source_K, other.source_K),
    ]
    return all(np.array_equal(a, b) for a, b in pairs)
