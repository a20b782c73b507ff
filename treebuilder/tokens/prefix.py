"""A radix tree of token ids. Pure.

Edges are runs of ids, kept as views of the arrays they came in: nothing is copied. A run ends where a
prompt or an output ended, and where two prompts part; no two children begin with the same id, so a
position in the tree stands for exactly one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gyre.treebuilder.trees import Ids

_CHUNK = 1 << 16
"""Ids compared at once: a chunk stays in the processor's cache."""
_NO_IDS = np.zeros(0, np.int32)


class Run:
    """A run of ids with one parent. `owner` is the call that sampled it, or else first had it."""

    __slots__ = ("children", "depth", "ids", "owner", "parent", "rest", "sampled", "size")

    def __init__(self, parent: Run | None, depth: int, ids: Ids, owner: int, sampled: bool) -> None:
        self.parent = parent
        self.depth = depth
        self.ids = ids
        self.size = len(ids)
        self.owner = owner
        self.sampled = sampled
        self.children: dict[int, Run] = {}
        self.rest: Run | None = None
        """What followed in this run before it was split: positions held elsewhere stay valid."""

    @property
    def end(self) -> int:
        return self.depth + self.size


class Position(NamedTuple):
    """`depth` ids from the root, the last of them in `run`."""

    run: Run
    depth: int


class PrefixTree:
    """All prompts and outputs of one execution, each shared beginning once."""

    def __init__(self) -> None:
        self.root = Run(None, 0, _NO_IDS, -1, False)

    @property
    def start(self) -> Position:
        return Position(self.root, 0)

    def settle(self, at: Position) -> Position:
        """The same position after runs were split."""
        run, depth = at
        while depth > run.depth + run.size:
            assert run.rest is not None
            run = run.rest
        return Position(run, depth)

    def up(self, at: Position, depth: int) -> Position:
        """The ancestor of that depth on the way from the root to `at`."""
        run = self.settle(at).run
        while run.depth >= depth and run.parent is not None:
            run = run.parent
        return Position(run, depth)

    def descend(self, at: Position, ids: Ids) -> tuple[Position, int]:
        """Follow `ids` as far as the tree has them: where that is, and how many were followed."""
        (run, depth), done, total = self.settle(at), 0, len(ids)
        while done < total:
            offset = depth - run.depth
            if offset == run.size:
                child = run.children.get(int(ids[done]))
                if child is None:
                    break
                run, offset = child, 0
            size = min(run.size - offset, total - done)
            common = common_prefix(run.ids[offset : offset + size], ids[done : done + size])
            done += common
            depth += common
            if common < size:
                break
        return Position(run, depth), done

    def grow(self, at: Position, ids: Ids, owner: int) -> tuple[Position, int]:
        """Put given ids under `at`: where they end, and how many of them were there already."""
        there, known = self.descend(at, ids)
        if known == len(ids):
            return self.cut(there), known
        return self._append(there, ids[known:], owner, False), known

    def sample(self, at: Position, ids: Ids, owner: int) -> Position:
        """Put sampled ids under `at`, which is cut. Who samples a run first owns it."""
        there, known = self.descend(at, ids)
        end = self.cut(there) if known == len(ids) else self._append(there, ids[known:], owner, True)
        run: Run | None = end.run
        while run is not None and run.depth >= at.depth:
            if not run.sampled:
                run.owner, run.sampled = owner, True
            run = run.parent
        return end

    def cut(self, at: Position) -> Position:
        """Let a run end here."""
        run, depth = self.settle(at)
        if depth < run.depth + run.size:
            self._split(run, depth - run.depth)
        return Position(run, depth)

    def path(self, at: Position) -> list[Run]:
        """Runs from the first under the root down to `at`."""
        run: Run | None = self.settle(at).run
        path = []
        while run is not None and run.parent is not None:
            path.append(run)
            run = run.parent
        return path[::-1]

    def runs(self) -> Iterator[Run]:
        """All runs, parents first; children in the order in which they came."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            run = stack.pop()
            yield run
            stack.extend(reversed(run.children.values()))

    def _append(self, at: Position, ids: Ids, owner: int, sampled: bool) -> Position:
        run = self.cut(at).run
        new = Run(run, at.depth, ids, owner, sampled)
        run.children[int(ids[0])] = new
        return Position(new, at.depth + new.size)

    def _split(self, run: Run, size: int) -> None:
        rest = Run(run, run.depth + size, run.ids[size:], run.owner, run.sampled)
        rest.children, rest.rest = run.children, run.rest
        for child in rest.children.values():
            child.parent = rest
        run.ids, run.size, run.rest = run.ids[:size], size, rest
        run.children = {int(rest.ids[0]): rest}


def common_prefix(one: Ids, other: Ids) -> int:
    """Length of the common beginning of two arrays of one length."""
    for start in range(0, len(one), _CHUNK):
        equal = one[start : start + _CHUNK] == other[start : start + _CHUNK]
        if not equal.all():
            return start + int(equal.argmin())
    return len(one)
