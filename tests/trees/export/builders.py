"""Trees made by hand, and the folder of trees that an export reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gyre.treebuilder.score import AttemptKey, advantages
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import (
    CallKey,
    Cause,
    Confidence,
    ExecutionTree,
    Link,
    Node,
    Role,
    Trajectory,
)


@dataclass
class TreeBuilder:
    """One execution, call by call. Ids of nodes are what calls return and take."""

    name: str
    attempt: int = 0
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    leaves: list[tuple[int, int, bool]] = field(default_factory=list)

    def call(
        self,
        call: str,
        under: int | None,
        new: Sequence[int],
        output: Sequence[int],
        context: int = 0,
        role: Role = Role.MAIN,
        cause: Cause = Cause.CONTINUATION,
        target: bool = True,
        versions: Sequence[tuple[str, int, int]] = (),
        origin: str | None = None,
        **link: Any,
    ) -> int:
        """The new prompt tokens under a node, and the output under those; returns the output's node."""
        key = CallKey(call)
        parent = under if not new else self._node(under, new, key, context, role, cause)
        leaf = self._node(parent, output, key, context, role, cause, sampled=True)
        node = self.nodes[leaf]
        node.target = target
        node.logprobs = -np.arange(1, len(output) + 1, dtype=np.float32) / 4
        node.version_spans = list(versions or [("3", 0, len(output))])
        self.links.append(
            Link(
                key, context, cause, Confidence.PROVEN, [],
                role=role, prompt_node=parent, output_node=leaf, output_tokens=len(output),
                targets=len(output) if target else 0, origin=CallKey(origin) if origin else None, **link,
            )
        )  # fmt: skip
        return leaf

    def admit(self, leaf: int, slot: int, stub: bool = False) -> None:
        self.leaves.append((leaf, slot, stub))

    def tree(self) -> ExecutionTree:
        tree = ExecutionTree(self.name, self.attempt, True, self.nodes, self.links, [])
        taken: set[int] = set()
        for number, (leaf, slot, stub) in enumerate(self.leaves):
            path = tree.path(leaf)
            fresh = [node for node in path if node.target and node.node_id not in taken]
            taken |= {node.node_id for node in fresh}
            for node in path:
                node.admitted = True
            tree.trajectories.append(
                Trajectory(
                    number, slot, stub, leaf, path[-1].context_id, path[-1].role,
                    sum(len(node.token_ids) for node in path), sum(len(node.token_ids) for node in fresh),
                )
            )  # fmt: skip
        tree.sampled_tokens = sum(len(node.token_ids) for node in self.nodes if node.sampled)
        tree.targets = sum(len(node.token_ids) for node in self.nodes if node.target)
        tree.kept_targets = sum(each.targets for each in tree.trajectories)
        return tree

    def _node(
        self,
        parent: int | None,
        ids: Sequence[int],
        call: CallKey,
        context: int,
        role: Role,
        cause: Cause,
        sampled: bool = False,
    ) -> int:
        above = self.nodes[parent] if parent is not None else None
        depth = above.depth + len(above.token_ids) if above else 0
        number = len(self.nodes)
        token_ids = np.array(ids, np.int32)
        self.nodes.append(Node(number, parent, depth, token_ids, call, context, role, cause, sampled))
        return number


@dataclass
class Folder:
    """What `read_trees` gives, from memory."""

    log: str | Path | None = None
    pairs: list[tuple[ExecutionSummary, ExecutionTree | None]] = field(default_factory=list)

    def add(self, tree: ExecutionTree | None, name: str = "", **summary: Any) -> None:
        if tree is not None:
            summary |= {
                "execution_attempt": tree.execution_attempt,
                "targets": tree.targets,
                "kept_targets": tree.kept_targets,
                "sampled_tokens": tree.sampled_tokens,
            }
        self.pairs.append((ExecutionSummary(tree.execution_id if tree else name, **summary), tree))

    def executions(self) -> list[ExecutionSummary]:
        return [summary for summary, _ in self.pairs]

    def advantages(self) -> Mapping[AttemptKey, float]:
        return advantages(self.executions())

    def __iter__(self) -> Iterator[tuple[ExecutionSummary, ExecutionTree]]:
        return ((summary, tree) for summary, tree in self.pairs if tree is not None)


def branching(name: str = "good") -> ExecutionTree:
    """A path with a stub that shares its first answer, and a sub-agent.

    prompt 1 2 3 | a: 10 11 | 4 5 | c: 14 15          main, the path it stopped on
                           | 6 | b: 12 13             a stub: what b said was rendered otherwise after
    prompt 20 21 | s: 30 31 32                        the sub-agent that a started

    a was sampled with temperature 1, b and c with 0.7, s with 0.5.
    """
    built = TreeBuilder(name)
    a = built.call("a", None, [1, 2, 3], [10, 11], cause=Cause.START, temperature=1.0)
    s = built.call(
        "s", None, [20, 21], [30, 31, 32], 1, Role.SUB, Cause.DELEGATION,
        origin="a", step="blocking", temperature=0.5,
    )  # fmt: skip
    b = built.call("b", a, [6], [12, 13], versions=[("3", 0, 1), ("4", 1, 2)], origin="a", temperature=0.7)
    c = built.call(
        "c", a, [4, 5], [14, 15], cause=Cause.REASONING_STRIPPED, versions=[("4", 0, 2)], temperature=0.7
    )
    for leaf, slot, stub in ((c, 0, False), (b, 0, True), (s, 1, False)):
        built.admit(leaf, slot, stub)
    return built.tree()


def straight(name: str, output: Sequence[int] = (40, 41), attempt: int = 0) -> ExecutionTree:
    """One call, one path."""
    built = TreeBuilder(name, attempt)
    built.admit(built.call(f"{name}-{attempt}", None, [1, 2, 3], output, cause=Cause.START), 0)
    return built.tree()


def usual() -> Folder:
    """Two executions of a group, one of them timed out; a group of equal scores; and what is left out."""
    folder = Folder()
    folder.add(branching(), group="g", task="t", score=1.0, outcome="completed")
    folder.add(straight("late", [40, 41, 42]), group="g", task="t", score=0.0, outcome="timed_out")
    folder.add(straight("same1"), group="h_1", score=0.5, outcome="completed")
    folder.add(straight("same2"), group="h_1", score=0.5, outcome="completed")
    folder.add(straight("none"), task="t2", outcome="no_artifact")
    folder.add(straight("unscored"), group="g", outcome="completed")
    folder.add(straight("measured"), group="g", score=1.0, evaluation=True)
    folder.add(straight("ended"), group="g", outcome="run_timeout", score=1.0)
    folder.add(straight("broken"), group="g", outcome="scorer_failed")
    folder.add(straight("again"), group="g", score=1.0, superseded=True)
    folder.add(straight("again", attempt=1), group="k", score=1.0)
    folder.add(straight("text"), group="g2", score=1.0, exact=False)
    folder.add(None, "torn", skipped="a call's parent is missing")
    return folder
