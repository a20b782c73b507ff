"""A tree as it was built becomes a tree as training takes it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

import numpy as np

from gyre.trainer.data.tree import TargetRun, TrainNode, TrainTree
from gyre.treebuilder.trees import CallKey, ExecutionTree, Link, Logprobs, Node


@dataclass(slots=True)
class Lacks:
    """How many targets lack something."""

    logprobs: int = 0
    comparable: int = 0
    """Log-probabilities that are known to be of the plain softmax at the temperature."""
    temperature: int = 0
    """Taken for 1."""
    source: int = 0
    """First tokens of roots: nothing predicts them, so they become context."""

    @classmethod
    def sum(cls, each: Iterable[Lacks]) -> Lacks:
        return cls(*(sum(column) for column in zip((0, 0, 0, 0), *map(astuple, each), strict=True)))


@dataclass(slots=True)
class Converted:
    tree: TrainTree
    lacks: Lacks
    longest: int
    """Tokens before the last target of its longest path: positions that the model needs."""


def train_tree(
    tree: ExecutionTree, *, group: str = "", reward: float = 0.0, advantage: float = 0.0
) -> Converted:
    """The admitted nodes of a tree.

    Raises:
        LookupError, ValueError: the tree contradicts itself: nothing of it may be trained.
    """
    made = _Making({link.call: link for link in tree.links}, _owners(tree))
    for node in tree.nodes:
        if node.admitted:
            made.add(node)
    kept = sum(len(node.token_ids) for node in tree.nodes if node.admitted and node.target)
    _require(kept == tree.kept_targets, f"has {kept} targets and should have {tree.kept_targets}")
    whole = TrainTree(
        execution_id=tree.execution_id,
        attempt=tree.execution_attempt,
        group=group,
        reward=reward,
        advantage=advantage,
        trajectories=len(tree.trajectories),
        nodes=made.nodes,
    )
    return Converted(whole, made.lacks, made.longest)


@dataclass(slots=True)
class _Making:
    links: Mapping[CallKey, Link]
    owners: Mapping[int, int]
    nodes: list[TrainNode] = field(default_factory=list)
    lacks: Lacks = field(default_factory=Lacks)
    longest: int = 0
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Stored node -> (index of the node that it ends with, length of its path)."""

    def add(self, node: Node) -> None:
        parent, depth = (-1, 0) if node.parent_id is None else self._ends[node.parent_id]
        _check(node, depth)
        for start, end, is_target in _cut(node, at_root=depth == 0):
            target = self._target(node, start) if is_target else None
            self.lacks.source += node.target and not is_target
            # A copy: a view would keep the whole row group in memory that was read for it.
            ids = node.token_ids[start:end].copy()
            self.nodes.append(TrainNode(parent=parent, token_ids=ids, target=target))
            parent = len(self.nodes) - 1
            if is_target:
                self.longest = max(self.longest, depth + end - 1)
        self._ends[node.node_id] = parent, depth + len(node.token_ids)

    def _target(self, node: Node, start: int) -> TargetRun:
        link = self.links.get(node.call)
        temperature = _temperature(link)
        logprobs = _logprobs(node)
        run = TargetRun(
            logprobs=None if logprobs is None else logprobs[start:].copy(),
            temperature=temperature or 1.0,
            trajectory=self.owners[node.node_id],
            versions=_versions(node, start),
            comparable=temperature is not None and _comparable(link),
        )
        count = len(node.token_ids) - start
        self.lacks.logprobs += count * (logprobs is None)
        self.lacks.comparable += count * (not run.comparable)
        self.lacks.temperature += count * (temperature is None)
        return run


def _owners(tree: ExecutionTree) -> dict[int, int]:
    """Node -> which of the admitted trajectories, by their ids, brings it first."""
    owners: dict[int, int] = {}
    ordered = sorted(tree.trajectories, key=lambda each: each.trajectory_id)
    for index, trajectory in enumerate(ordered):
        at: int | None = trajectory.leaf_node
        while at is not None and at not in owners:
            _require(0 <= at < len(tree.nodes), f"has a path through node {at}, which there is not")
            owners[at] = index
            at = tree.nodes[at].parent_id
    for node in tree.nodes:
        same = node.admitted == (node.node_id in owners)
        _require(same, f"node {node.node_id} is on no kept path and said to be, or the other way round")
    return owners


def _check(node: Node, depth: int) -> None:
    count, where = len(node.token_ids), f"node {node.node_id}"
    _require(depth == node.depth, f"{where} does not begin where its parent ends")
    _require(not count or int(node.token_ids.min()) >= 0, f"{where} has a negative token id")
    fits = node.logprobs is None or len(node.logprobs) == count
    _require(fits, f"{where} has not one log-probability a token")
    inside = all(0 <= start <= end <= count for _, start, end in node.version_spans)
    _require(inside, f"{where} has versions outside of its tokens")


def _cut(node: Node, *, at_root: bool) -> list[tuple[int, int, bool]]:
    """(start, end, whether these are targets); nothing for an empty node."""
    count = len(node.token_ids)
    first = 1 if at_root and node.target else 0
    runs = [(0, first, False), (first, count, node.target)]
    return [(start, end, target) for start, end, target in runs if start < end]


def _logprobs(node: Node) -> Logprobs | None:
    """None unless all of them are usable."""
    known = node.logprobs
    return known if known is not None and np.isfinite(known).all() else None


def _versions(node: Node, start: int) -> tuple[tuple[str, int, int], ...]:
    """Spans within what is left of a node from `start` on."""
    moved = ((name, max(a - start, 0), b - start) for name, a, b in node.version_spans)
    return tuple((name, a, b) for name, a, b in moved if a < b)


def _temperature(link: Link | None) -> float | None:
    """None: not known. Nothing is sampled at 0."""
    if link is None or link.temperature is None or not link.temperature > 0:
        return None
    return link.temperature


def _comparable(link: Link | None) -> bool:
    """Whether log-probabilities are those of the plain softmax at the temperature, so far as is known."""
    return link is not None and (link.logprob_quality, link.sampling) == ("sampled", "neutral")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)
