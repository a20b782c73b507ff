"""A piece for some of its targets only, without the tokens that those do not need."""

from __future__ import annotations

import numpy as np

from gyre.trainer.pack.piece import Bools, Ints, Piece


def restrict(piece: Piece, keep_K: Bools) -> Piece:
    """The piece with the targets that `keep_K` names, their sources, and what comes before those.

    What is left keeps its order; targets come in the order of their sources. `context` is not known any
    more and is 0.
    """
    kept = np.flatnonzero(keep_K)
    kept = kept[np.argsort(piece.source_K[kept], kind="stable")]
    marks = np.zeros(len(piece) + 1, np.int64)
    marks[piece.source_K[kept] + 1] = 1
    before = np.cumsum(marks)
    needed = np.flatnonzero(before[piece.tout_N] > before[:-1])
    return take(piece, needed, kept)


def take(piece: Piece, tokens_n: Ints, targets_k: Ints, context: int = 0) -> Piece:
    """The piece of these tokens and targets, both as ascending indices by token.

    With a token all tokens before it on its path have to be among them, and every target's source.
    """
    parents = piece.parent_N[tokens_n]
    return Piece(
        input_ids_N=piece.input_ids_N[tokens_n],
        position_ids_N=piece.position_ids_N[tokens_n],
        parent_N=np.where(parents < 0, -1, np.searchsorted(tokens_n, parents)),
        tout_N=np.searchsorted(tokens_n, piece.tout_N[tokens_n]),
        source_K=np.searchsorted(tokens_n, piece.source_K[targets_k]),
        label_K=piece.label_K[targets_k],
        target_K=piece.target_K[targets_k],
        context=context,
    )
