"""One forest from all executions of a batch: every prefix once, whoever had it.

A token's log-probability depends on the ids before it only, so equal beginnings are one, between branches,
executions and groups alike. What two executions sampled at the same place are two targets of one source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gyre.trainer.data.tree import TargetRun, TrainNode, TrainTree
from gyre.trainer.pack.piece import Floats32, Ints, Piece, Targets
from gyre.trainer.pack.restrict import restrict
from gyre.treebuilder.tokens.prefix import Position, PrefixTree, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A batch: all tokens it needs, and what the loss knows of its targets."""

    forest: Piece
    targets: Targets


def merge(trees: Sequence[TrainTree]) -> Packed:
    """Put the executions into one trie, without the tails that no target needs.

    The forest is the same in whatever order the trees come, but for the numbers of its targets: branches
    are in the order of their first ids. Targets are in the order execution, node, token. Executions without
    targets leave no trace. Linear in tokens; Python only works per node and per run.

    Raises ValueError where a target is the first token of a root: nothing predicts that one.
    """
    trees = [tree for tree in trees if tree.targets]
    trie = PrefixTree()
    ends = [_grow(trie, tree, index) for index, tree in enumerate(trees)]
    layout = _Layout(trie)
    sources = [
        layout.indices(end, end.depth - len(node.token_ids) - 1, end.depth - 1)
        for tree, tree_ends in zip(trees, ends, strict=True)
        for node, end in zip(tree.nodes, tree_ends, strict=True)
        if node.target is not None
    ]
    labels = [node.token_ids for tree in trees for node in tree.nodes if node.target is not None]
    return Packed(forest=_forest(layout, _join(sources), _join(labels)), targets=_targets(trees))


def _grow(trie: PrefixTree, tree: TrainTree, owner: int) -> list[Position]:
    """Where each node ends."""
    ends: list[Position] = []
    for node in tree.nodes:
        at = trie.start if node.parent < 0 else ends[node.parent]
        if node.parent < 0 and node.target is not None:
            raise ValueError(f"a target of {tree.execution_id} is the first token of a root")
        ends.append(trie.grow(at, node.token_ids, owner)[0])
    return ends


class _Layout:
    """Where the runs of a trie lie in depth-first order, children by their first ids."""

    def __init__(self, trie: PrefixTree) -> None:
        self.trie = trie
        self.runs = _depth_first(trie)
        starts = accumulate((run.size for run in self.runs), initial=0)
        self.start = dict(zip(self.runs, starts, strict=False))

    def indices(self, end: Position, low: int, high: int) -> Ints:
        """Of the tokens at depths `low` to `high` - 1 on the path down to `end`."""
        parts = []
        run: Run | None = self.trie.up(end, high).run
        while run is not None and high > low:
            offset = self.start[run] - run.depth
            parts.append(np.arange(max(low, run.depth) + offset, high + offset))
            high, run = run.depth, run.parent
        return _join(parts[::-1])

    def parents(self) -> Ints:
        """Of each token the one before it."""
        sizes = [run.size for run in self.runs]
        parents = np.arange(-1, sum(sizes) - 1, dtype=np.int64)
        for run in self.runs:
            parents[self.start[run]] = self._last(run.parent)
        return parents

    def _last(self, run: Run | None) -> int:
        return -1 if run is None or run.size == 0 else self.start[run] + run.size - 1

    def ends(self) -> Ints:
        """Of each token where its subtree ends: the whole of a run shares it, branches come after."""
        ends = {run: start + run.size for run, start in self.start.items()}
        for run in reversed(self.runs):
            if run.parent is not None and run.parent.size:
                ends[run.parent] = max(ends[run.parent], ends[run])
        sizes = [run.size for run in self.runs]
        return np.repeat(np.array([ends[run] for run in self.runs], np.int64), sizes)


def _depth_first(trie: PrefixTree) -> list[Run]:
    runs: list[Run] = []
    stack = [trie.root]
    while stack:
        run = stack.pop()
        runs.append(run)
        stack.extend(run.children[first] for first in sorted(run.children, reverse=True))
    return runs[1:]


def _forest(layout: _Layout, sources_T: Ints, labels_T: Ints) -> Piece:
    order_T = np.argsort(sources_T, kind="stable")
    sizes = [run.size for run in layout.runs]
    shifts = [run.depth - layout.start[run] for run in layout.runs]
    whole = Piece(
        input_ids_N=_join([run.ids for run in layout.runs]),
        position_ids_N=np.arange(sum(sizes)) + np.repeat(np.array(shifts, np.int64), sizes),
        parent_N=layout.parents(),
        tout_N=layout.ends(),
        source_K=sources_T[order_T],
        label_K=labels_T[order_T],
        target_K=order_T,
    )
    return restrict(whole, np.ones(len(order_T), np.bool_))


def _targets(trees: Sequence[TrainTree]) -> Targets:
    nodes = [[(node, node.target) for node in tree.nodes if node.target is not None] for tree in trees]
    firsts = list(accumulate((tree.trajectories for tree in trees), initial=0))
    counts = np.array([tree.targets for tree in trees], np.int64)
    sizes = np.array([len(node.token_ids) for own in nodes for node, _ in own], np.int64)
    runs = [target for own in nodes for _, target in own]
    trajectories = [
        first + target.trajectory for first, own in zip(firsts, nodes, strict=False) for _, target in own
    ]
    names, versions = _versions([pair for own in nodes for pair in own])
    return Targets(
        execution_T=np.repeat(np.arange(len(trees)), counts),
        trajectory_T=np.repeat(np.array(trajectories, np.int64), sizes),
        weight_T=np.repeat(1 / counts, counts),
        advantage_T=np.repeat(np.array([tree.advantage for tree in trees], np.float64), counts),
        behaviour_T=_behaviour(runs, sizes),
        temperature_T=np.repeat(np.array([run.temperature for run in runs], np.float32), sizes),
        version_T=versions,
        versions=names,
        executions=tuple(tree.name for tree in trees),
        trajectories=firsts[-1],
    )


def _behaviour(runs: Sequence[TargetRun], sizes: Ints) -> Floats32:
    parts = [
        run.logprobs if run.comparable and run.logprobs is not None else np.full(size, np.nan, np.float32)
        for run, size in zip(runs, sizes, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.float32), *parts], dtype=np.float32)


def _versions(nodes: Sequence[tuple[TrainNode, TargetRun]]) -> tuple[tuple[str, ...], Ints]:
    """Names in the order in which they come, and of each target the index of its own."""
    names: dict[str, int] = {}
    parts = []
    for node, run in nodes:
        part = np.full(len(node.token_ids), -1, np.int64)
        for name, start, end in run.versions:
            part[start:end] = names.setdefault(name, len(names))
        parts.append(part)
    return tuple(names), _join(parts)


def _join(parts: Sequence[np.typing.NDArray[np.integer]]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts], dtype=np.int64)
