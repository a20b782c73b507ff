"""A forest over ranks: to each its pieces, so that all are done at about the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.segments import Segment, segments
from gyre.trainer.pack.split import Bundle, bundles, closure, pieces
from gyre.trainer.pack.work import LINEAR, cost

_REPEATED = 0.05
"""What all ranks do together counts so much beside what the last one waits for: a finer division repeats
tokens, and has to be worth that."""
_SHARES = (0.125, 0.25, 0.5, 0.75, *(1 + step / 25 for step in range(15)))
"""Sizes of what is dealt out, in parts of what a rank would have without repetition."""
_ALL_TRIED = 100
"""Segments up to which every size is tried; with more there are fewer, since each is a split of its own."""


def micro_batches(forest: Piece, *, budget: int, ranks: int, linear: float = LINEAR) -> list[list[Piece]]:
    """Pieces of at most `budget` tokens for each of `ranks` ranks; some may have fewer than others, or none.

    The forest is parted at some sizes, small and large, the parts are dealt out, costliest first, each to
    the rank that has least (LPT, Graham 1969; with parts just above a rank's share it is MULTIFIT, Coffman,
    Garey and Johnson 1978), and what a rank has is joined again up to the budget. The size wins for which
    the rank with most work has least. `linear`: see `cost`. The same on every rank that asks.
    """
    nodes = segments(forest)
    plans = [_dealt(nodes, limit, budget, ranks, linear) for limit in _limits(nodes, budget, ranks)]
    best = min(plans, key=lambda plan: _waited(nodes, plan, linear))
    made = iter(pieces(forest, nodes, [held for own in best for held in own]))
    return [[next(made) for _ in own] for own in best]


def _limits(nodes: Sequence[Segment], budget: int, ranks: int) -> list[int]:
    if ranks == 1:
        return [budget]
    tokens, step = sum(map(len, nodes)), min(len(_SHARES), 1 + len(nodes) // _ALL_TRIED)
    shares = [int(share * tokens / ranks) for share in _SHARES[step // 2 :: step]]
    return [budget, *(limit for limit in shares if limit > 0)]


def _waited(nodes: Sequence[Segment], plan: Sequence[Sequence[Bundle]], linear: float) -> float:
    loads = [sum(_cost(nodes, held, linear) for held in own) for own in plan]
    return max(loads) + _REPEATED * sum(loads)


def _dealt(
    nodes: Sequence[Segment], limit: int, budget: int, ranks: int, linear: float
) -> list[list[Bundle]]:
    parts = [(-_cost(nodes, held, linear), held) for held in bundles(nodes, limit)]
    loads = [(0.0, rank) for rank in range(ranks)]
    shares: list[Bundle] = [[] for _ in range(ranks)]
    for less, held in sorted(parts):
        load, rank = loads[0]
        shares[rank].extend(held)
        heapq.heapreplace(loads, (load - less, rank))
    return [bundles(nodes, budget, share) for share in shares]


def _cost(nodes: Sequence[Segment], held: Bundle, linear: float) -> float:
    own = [nodes[index] for index in closure(nodes, held)]
    pairs = sum(len(node) * node.depth + len(node) * (len(node) + 1) // 2 for node in own)
    return cost(sum(len(node) for node in own), pairs, linear)
