"""A forest in pieces that fit into memory one at a time.

Cuts are made at branch points only; a piece has all tokens before its own (they are computed again as
context), so every log-probability is what it was. Each leaf is in one piece. With k_v pieces that have
segment v, the tokens computed are sum_v |v| k_v: at each branch point the bundles of its branches go into as
few bins as hold them, of the budget less the tokens that lead there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from gyre.trainer.pack.bins import fill_bins
from gyre.trainer.pack.piece import Ints, Piece
from gyre.trainer.pack.restrict import take
from gyre.trainer.pack.segments import Segment, segments

Bundle = list[int]
"""Leaf segments of one piece, by index; with all that comes before them they are its tokens."""


def split(forest: Piece, budget: int) -> list[Piece]:
    """Pieces of at most `budget` tokens, with as few tokens repeated as bottom-up bin packing finds.

    A path from a root to a leaf that is longer is a piece of its own. Small trees share a piece. Targets of
    a token that several pieces have are computed in the first of them; `context` counts what pieces before
    have computed already, so that its sum is what the split costs.

    Heuristic, as the best split is NP-hard to find: bins are filled by `fill_bins`, and from the leaves
    upwards, without going back on how a subtree was bundled. Deterministic.

    `forest` is as `merge` and `restrict` make it: every leaf is some target's source.
    """
    nodes = segments(forest)
    return pieces(forest, nodes, bundles(nodes, budget))


def bundles(nodes: Sequence[Segment], budget: int, leaves: Sequence[int] | None = None) -> list[Bundle]:
    """Which leaves (of all, or of these) go together, in the order of their first ones."""
    wanted = set(range(len(nodes)) if leaves is None else leaves)
    below: list[list[tuple[int, Bundle]]] = [[] for _ in nodes]
    roots: list[tuple[int, Bundle]] = []
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if node.children:
            found = _joined(below[index], budget - node.depth - len(node))
            below[index] = []
        else:
            found = [(0, [index])] if index in wanted else []
        above = below[node.parent] if node.parent >= 0 else roots
        above.extend((load + len(node), held) for load, held in found)
    return sorted(sorted(held) for _, held in _joined(roots, budget))


def _joined(items: list[tuple[int, Bundle]], room: int) -> list[tuple[int, Bundle]]:
    joined = []
    for held in fill_bins([size for size, _ in items], room):
        largest = max((items[index][1] for index in held), key=len)
        for index in held:
            if items[index][1] is not largest:
                largest.extend(items[index][1])
        joined.append((sum(items[index][0] for index in held), largest))
    return joined


def closure(nodes: Sequence[Segment], held: Bundle) -> list[int]:
    """The segments of a bundle and all before them, in order."""
    found: set[int] = set()
    for index in held:
        while index >= 0 and index not in found:
            found.add(index)
            index = nodes[index].parent
    return sorted(found)


def pieces(forest: Piece, nodes: Sequence[Segment], parts: Sequence[Bundle]) -> list[Piece]:
    """A piece for each bundle; a target is in the first that has its source."""
    targets = _by_segment(forest, nodes)
    seen: set[int] = set()
    made = []
    for held in parts:
        own = closure(nodes, held)
        new = [index for index in own if index not in seen]
        made.append(
            take(
                forest,
                np.concatenate([np.arange(nodes[index].start, nodes[index].end) for index in own]),
                np.concatenate([targets[index] for index in new]),
                context=sum(len(nodes[index]) for index in own) - sum(len(nodes[index]) for index in new),
            )
        )
        seen.update(new)
    return made


def _by_segment(forest: Piece, nodes: Sequence[Segment]) -> list[Ints]:
    """Of each segment the targets whose sources it has, in the order of those."""
    order_K = np.argsort(forest.source_K, kind="stable")
    ends = np.searchsorted(forest.source_K[order_K], [node.end for node in nodes])
    starts = accumulate(np.diff(ends, prepend=0).tolist(), initial=0)
    return [order_K[start:end] for start, end in zip(starts, ends.tolist(), strict=False)]
