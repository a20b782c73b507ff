"""Trees of executions as training takes them, drawn at random: every shape that recorded runs can have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gyre.trainer.data.tree import TargetRun, TrainNode, TrainTree

VOCAB = 97


def tree(
    execution_id: str,
    nodes: Sequence[TrainNode],
    *,
    advantage: float = 1.0,
    attempt: int = 0,
    group: str = "g",
    reward: float = 0.0,
) -> TrainTree:
    """With trajectories counted: a leaf each, and a target belongs to the first of them, by index."""
    parents = [node.parent for node in nodes]
    leaves = _leaves(parents)
    first = _first_trajectory(parents, leaves)
    return TrainTree(
        execution_id=execution_id,
        attempt=attempt,
        group=group,
        reward=reward,
        advantage=advantage,
        trajectories=len(leaves),
        nodes=[_in_trajectory(node, first[index]) for index, node in enumerate(nodes)],
    )


def context(parent: int, *ids: int) -> TrainNode:
    return TrainNode(parent=parent, token_ids=np.array(ids, dtype=np.int32))


def targets(
    parent: int,
    *ids: int,
    temperature: float = 1.0,
    logprobs: Sequence[float] | None = None,
    versions: tuple[tuple[str, int, int], ...] = (),
    comparable: bool = True,
) -> TrainNode:
    """All of its tokens are targets; `logprobs` default to -1."""
    values = [-1.0] * len(ids) if logprobs is None else logprobs
    run = TargetRun(
        logprobs=np.array(values, dtype=np.float32),
        temperature=temperature,
        trajectory=0,
        versions=versions or (("1", 0, len(ids)),),
        comparable=comparable,
    )
    return TrainNode(parent=parent, token_ids=np.array(ids, dtype=np.int32), target=run)


def sampled(trees: Iterable[TrainTree]) -> Iterator[tuple[TrainTree, int, int]]:
    """Every target of a batch as (execution, node, index in the node), in `Targets`' order."""
    for execution in trees:
        for index, node in enumerate(execution.nodes):
            if node.target is not None:
                yield from ((execution, index, token) for token in range(len(node.token_ids)))


def with_logprobs(trees: Sequence[TrainTree], values_T: Sequence[float]) -> list[TrainTree]:
    """The same with these recorded log-probabilities, in `Targets`' order; missing ones stay missing."""
    rest = iter(values_T)
    return [
        replace(execution, nodes=[_recorded(node, rest) for node in execution.nodes]) for execution in trees
    ]


def _recorded(node: TrainNode, rest: Iterator[float]) -> TrainNode:
    if node.target is None:
        return node
    values = np.array([next(rest) for _ in node.token_ids], dtype=np.float32)
    if node.target.logprobs is None:
        return node
    return replace(node, target=replace(node.target, logprobs=values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large random trees are. The defaults make about 50 tokens."""

    executions: int = 4
    groups: int = 2
    nodes: int = 7
    """Of an execution at most; at least 1."""
    longest: int = 5
    """Tokens of a node."""
    roots: int = 2
    vocab: int = VOCAB
    no_variance: float = 0.0
    """Share of executions without an advantage."""
    missing: float = 0.1
    """Share of sampled nodes without log-probabilities, and of those whose own may not be compared."""


def random_trees(seed: int, shape: Shape | None = None) -> list[TrainTree]:
    """Some executions, each with at least one target, by preference with beginnings in common.

    Contents come from a few scripts that all executions draw from, from a node already there or from
    another execution: so paths run together within an execution, within a group and across groups, part in
    the middle of a node, and one position is sampled by several executions.
    """
    shape = shape or Shape()
    rng = np.random.default_rng(seed)
    scripts = [_ids(rng, shape, int(rng.integers(1, shape.longest + 1))) for _ in range(4)]
    trees: list[TrainTree] = []
    while len(trees) < shape.executions:
        if trees and rng.random() < 0.4:
            nodes = _retold(rng, shape, trees[int(rng.integers(0, len(trees)))])
        else:
            nodes = [_root(rng, shape, scripts)]
        execution = _execution(rng, shape, scripts, nodes, len(trees))
        if execution.targets:
            trees.append(execution)
    return trees


def _retold(rng: np.random.Generator, shape: Shape, other: TrainTree) -> list[TrainNode]:
    """The same tokens as on the way to some node of another execution, whoever they are of here."""
    node = int(rng.integers(0, len(other.nodes)))
    way = [node]
    while other.nodes[way[0]].parent >= 0:
        way.insert(0, other.nodes[way[0]].parent)
    ids = [other.nodes[step].token_ids.tolist() for step in way]
    nodes = [context(-1, *ids[0])]
    for index in range(1, len(ids)):
        sampled = rng.random() < 0.6
        nodes.append(
            _sampled(rng, shape, index - 1, ids[index]) if sampled else context(index - 1, *ids[index])
        )
    return nodes


def _execution(
    rng: np.random.Generator, shape: Shape, scripts: list[list[int]], start: list[TrainNode], index: int
) -> TrainTree:
    nodes = list(start)
    size = int(rng.integers(min(2, shape.nodes), shape.nodes + 1))
    while len(nodes) < size:
        roots = sum(node.parent < 0 for node in nodes)
        if roots < shape.roots and rng.random() < 0.15:
            nodes.append(_root(rng, shape, scripts))
        else:
            nodes.append(_child(rng, shape, scripts, nodes))
    advantage = 0.0 if rng.random() < shape.no_variance else float(rng.normal()) or 1.0
    leaves = _leaves([node.parent for node in nodes])
    first = _first_trajectory(
        [node.parent for node in nodes], [leaves[i] for i in rng.permutation(len(leaves))]
    )
    return TrainTree(
        execution_id=f"run-{index}",
        attempt=int(rng.integers(0, 2)),
        group=f"group-{index % shape.groups}",
        reward=float(rng.random()),
        advantage=advantage,
        trajectories=len(leaves),
        nodes=[_in_trajectory(node, first[i]) for i, node in enumerate(nodes)],
    )


def _root(rng: np.random.Generator, shape: Shape, scripts: list[list[int]]) -> TrainNode:
    """A prompt; one in four is a single token, so that branches come at the first one."""
    script = scripts[int(rng.integers(0, 2))]
    return context(-1, *(script[:1] if rng.random() < 0.25 else script))


def _child(
    rng: np.random.Generator, shape: Shape, scripts: list[list[int]], nodes: list[TrainNode]
) -> TrainNode:
    twin = nodes[-1] if rng.random() < 0.15 else None
    if twin and twin.parent >= 0:
        parent, ids = twin.parent, twin.token_ids.tolist()
    else:
        parent = len(nodes) - 1 if rng.random() < 0.5 else int(rng.integers(0, len(nodes)))
        ids = _content(rng, shape, scripts, [node for node in nodes if node.parent == parent])
    return context(parent, *ids) if rng.random() < 0.35 else _sampled(rng, shape, parent, ids)


def _content(
    rng: np.random.Generator, shape: Shape, scripts: list[list[int]], siblings: list[TrainNode]
) -> list[int]:
    kind = rng.random()
    if siblings and kind < 0.3:
        ids = siblings[int(rng.integers(0, len(siblings)))].token_ids.tolist()
        return ids if rng.random() < 0.5 else [*ids, *_ids(rng, shape, 1)]
    if kind < 0.7:
        script = scripts[int(rng.integers(0, len(scripts)))]
        return script[: int(rng.integers(1, len(script) + 1))]
    return _ids(rng, shape, 1 if rng.random() < 0.3 else int(rng.integers(1, shape.longest + 1)))


def _sampled(rng: np.random.Generator, shape: Shape, parent: int, ids: list[int]) -> TrainNode:
    cut = int(rng.integers(0, len(ids) + 1))
    spans = ((str(int(rng.integers(1, 4))), 0, cut), (str(int(rng.integers(1, 4))), cut, len(ids)))
    node = targets(
        parent,
        *ids,
        temperature=round(float(rng.uniform(0.6, 1.3)), 2),
        logprobs=[float(value) for value in -rng.exponential(2.0, len(ids))],
        versions=tuple(span for span in spans if span[1] < span[2]),
        comparable=bool(rng.random() >= shape.missing),
    )
    assert node.target is not None
    lost = rng.random() < shape.missing
    return replace(node, target=replace(node.target, logprobs=None)) if lost else node


def _ids(rng: np.random.Generator, shape: Shape, count: int) -> list[int]:
    return [int(value) for value in rng.integers(0, shape.vocab, count)]


def _leaves(parents: Sequence[int]) -> list[int]:
    return [index for index in range(len(parents)) if index not in parents]


def _first_trajectory(parents: Sequence[int], leaves: Sequence[int]) -> list[int]:
    """Of each node the first of these paths that it is on."""
    first = [-1] * len(parents)
    for trajectory, leaf in enumerate(leaves):
        node = leaf
        while node >= 0:
            first[node] = trajectory if first[node] < 0 else first[node]
            node = parents[node]
    return first


def _in_trajectory(node: TrainNode, trajectory: int) -> TrainNode:
    if node.target is None:
        return node
    return replace(node, target=replace(node.target, trajectory=trajectory))
