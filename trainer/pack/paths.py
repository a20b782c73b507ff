"""The sequences that a piece stands for: what `flat` runs one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gyre.trainer.pack.piece import Ints, Piece
from gyre.trainer.pack.segments import segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """From a root to a leaf, S tokens."""

    tokens_S: Ints
    """Their indices in the piece; the one at position s of the path is entry s."""
    targets_k: Ints
    """Which of the piece's K targets are computed here: those whose source no path before has. Where on the
    path a source is, `position_ids_N` says."""

    def __len__(self) -> int:
        return len(self.tokens_S)


def paths(piece: Piece) -> list[Path]:
    """A path for each leaf, in the piece's order; each target is in exactly one."""
    nodes = segments(piece)
    leaves = [index for index, node in enumerate(nodes) if not node.children]
    # Depth-first order: what comes after the last leaf, up to this one, is on no path before.
    ends = np.array([nodes[leaf].end for leaf in leaves], np.int64)
    first_K = np.searchsorted(ends, piece.source_K, side="right")
    order = np.argsort(first_K, kind="stable")
    cuts = np.searchsorted(first_K[order], np.arange(1, len(leaves)))
    own = np.split(order, cuts) if leaves else []
    found = []
    for leaf, targets in zip(leaves, own, strict=True):
        parts, at = [], leaf
        while at >= 0:
            parts.append(np.arange(nodes[at].start, nodes[at].end))
            at = nodes[at].parent
        found.append(Path(tokens_S=np.concatenate(parts[::-1]), targets_k=targets))
    return found
