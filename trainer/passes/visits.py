"""In what order `dfs` computes a piece, and what at once.

A visit is a run of tokens that continue each other, or several small subtrees that hang on the same token:
those are masked against each other, because a pass over the weights for a few tokens costs as much as one
for some dozens. Either way its tokens are successive in the piece, and their keys and values come right
behind those of the path that leads to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.segments import Segment, segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Tokens [start, end) of a piece."""

    start: int
    end: int
    depth: int
    """Tokens before it on the path."""
    parent: int
    """Index of the visit that it hangs on; -1: none."""
    run: bool
    """Each token continues the one before it; otherwise they are whole subtrees, on which nothing hangs."""
    children: bool

    def __len__(self) -> int:
        return self.end - self.start


def visits(piece: Piece, *, limit: int | None, together: int) -> list[Visit]:
    """All of a piece's, parents first, each right after what hangs on the one before it.

    limit: tokens of a visit at most. together: subtrees are computed at once up to so many tokens; 0: never.
    """
    runs = segments(piece, limit)
    together = together if limit is None else min(together, limit)
    sizes = [int(piece.tout_N[run.start]) - run.start for run in runs]
    found: list[Visit] = []
    roots = [index for index, run in enumerate(runs) if run.parent < 0]
    stack = [(-1, group) for group in reversed(_groups(roots, sizes, together))]
    while stack:
        parent, group = stack.pop()
        visit = _visit(runs, sizes, parent, group, together)
        if visit.children:
            inner = _groups(runs[group[0]].children, sizes, together)
            stack.extend((len(found), group) for group in reversed(inner))
        found.append(visit)
    return found


def _groups(siblings: Sequence[int], sizes: Sequence[int], together: int) -> list[list[int]]:
    """Neighbours whose subtrees fit into `together`; any other alone."""
    groups: list[list[int]] = []
    room = 0
    for index in siblings:
        if sizes[index] <= room:
            groups[-1].append(index)
            room -= sizes[index]
        else:
            groups.append([index])
            room = together - sizes[index]
    return groups


def _visit(
    runs: Sequence[Segment], sizes: Sequence[int], parent: int, group: Sequence[int], together: int
) -> Visit:
    first, last = runs[group[0]], group[-1]
    whole = sizes[group[0]] <= together or not first.children
    return Visit(
        start=first.start,
        end=runs[last].start + sizes[last] if whole else first.end,
        depth=first.depth,
        parent=parent,
        run=len(group) == 1 and (not whole or not first.children),
        children=not whole,
    )
