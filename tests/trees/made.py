"""Trees made by hand, call by call, for what only looks at trees.

made = Made("e1")
made.call("c1", new=100, output=10)
made.call("s1", context=1, cause=Cause.DELEGATION, role=Role.SUB, origin="c1", new=50, output=5)
made.admit("c1")
tree, summary = made.tree(), made.summary(score=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import (
    CallKey,
    Cause,
    Confidence,
    Evidence,
    ExecutionTree,
    Link,
    Node,
    Role,
    Trajectory,
)


@dataclass
class Made:
    execution_id: str = "e1"
    attempt: int = 0
    exact: bool = True
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)

    def call(
        self,
        name: str,
        *,
        context: int = 0,
        cause: Cause = Cause.CONTINUATION,
        role: Role = Role.MAIN,
        origin: str | None = None,
        new: int = 10,
        output: int = 4,
        trained: bool = True,
        **fields: Any,
    ) -> Link:
        """Its prompt is all of `origin`, output included, and `new` tokens, where it goes on from it."""
        before = next((link for link in self.links if link.call.call_id == origin), None)
        anew = cause == Cause.DELEGATION or fields.get("step") == "restart"
        shared = before.prompt_tokens + before.output_tokens if before and not anew else 0
        key = CallKey(name)
        first = not self.links
        link = Link(
            key,
            context,
            Cause.START if first else cause,
            fields.pop("confidence", Confidence.PROVEN),
            [Evidence("ids", f"as made for {name}")],
            origin=before.call if before else None,
            origin_context_id=before.context_id if before else None,
            role=role,
            shared_tokens=shared,
            prompt_tokens=shared + new,
            output_tokens=output,
            targets=output if trained else 0,
            untrained=None if trained else "greedy",
        )
        for attribute, value in fields.items():
            setattr(link, attribute, value)
        parent = before.output_node if before and shared else None
        link.prompt_node = self._node(link, parent, shared, new, sampled=False)
        link.output_node = self._node(link, link.prompt_node, shared + new, output, sampled=True)
        self.links.append(link)
        return link

    def _node(self, link: Link, parent: int | None, depth: int, length: int, *, sampled: bool) -> int:
        target = sampled and link.untrained is None
        ids = np.arange(depth, depth + length, dtype=np.int32)
        node = Node(
            len(self.nodes), parent, depth, ids, link.call, link.context_id, link.role, link.cause, sampled
        )
        node.target = target
        node.logprobs = np.full(length, -0.5, np.float32) if sampled else None
        self.nodes.append(node)
        return node.node_id

    def admit(self, name: str, *, stub: bool = False) -> None:
        """Keep the path that ends in that call's output."""
        link = next(link for link in self.links if link.call.call_id == name)
        assert link.output_node is not None
        path = self.tree().path(link.output_node)
        fresh = sum(len(node.token_ids) for node in path if node.target and not node.admitted)
        for node in path:
            node.admitted = True
        slot = max((one.slot for one in self.trajectories), default=-1) + (not stub)
        tokens = sum(len(node.token_ids) for node in path)
        self.trajectories.append(
            Trajectory(
                len(self.trajectories),
                slot,
                stub,
                link.output_node,
                link.context_id,
                link.role,
                tokens,
                fresh,
            )
        )

    def tree(self) -> ExecutionTree:
        tree = ExecutionTree(
            self.execution_id, self.attempt, self.exact, self.nodes, self.links, self.trajectories
        )
        lengths = [(node, len(node.token_ids)) for node in self.nodes]
        tree.sampled_tokens = sum(n for node, n in lengths if node.sampled)
        tree.targets = sum(n for node, n in lengths if node.target)
        tree.kept_targets = sum(n for node, n in lengths if node.target and node.admitted)
        for link in self.links:
            if link.untrained is not None:
                tree.untrained[link.untrained] = tree.untrained.get(link.untrained, 0) + link.output_tokens
        left = tree.targets - tree.kept_targets
        tree.left_out = {"cap:main": left} if left else {}
        return tree

    def summary(self, **fields: Any) -> ExecutionSummary:
        """Of the tree as it is now."""
        tree = self.tree()
        causes: dict[str, int] = {}
        for link in self.links:
            causes[link.cause.value] = causes.get(link.cause.value, 0) + 1
        known: dict[str, Any] = dict(
            calls=len(self.links),
            contexts=len({link.context_id for link in self.links}),
            prompt_tokens=sum(link.prompt_tokens for link in self.links),
            tree_tokens=sum(len(node.token_ids) for node in self.nodes),
            sampled_tokens=tree.sampled_tokens,
            targets=tree.targets,
            kept_targets=tree.kept_targets,
            trajectories=len({one.slot for one in self.trajectories}),
            quarantined=sum(link.confidence == Confidence.QUARANTINED for link in self.links),
            left_out=tree.left_out,
            untrained=tree.untrained,
            causes=causes,
        )
        return ExecutionSummary(self.execution_id, self.attempt, exact=self.exact, **(known | fields))


def typical() -> Made:
    """A main agent with a sub-agent, one compaction, a stub, a retry and something undecided."""
    made = Made()
    made.call("c1", new=100, output=20)
    made.call("c2", origin="c1", new=10, output=20, temperature=0.7)
    made.call("s1", context=1, cause=Cause.DELEGATION, step="blocking", role=Role.SUB, origin="c2", new=40)
    made.call("s2", context=1, role=Role.SUB, origin="s1", new=6)
    made.call("c3", origin="c1", new=30, output=20, cause=Cause.REASONING_STRIPPED, break_offset=115)
    made.call("c3x", origin="c3", new=0, output=8, cause=Cause.RETRY, trained=False)
    made.call(
        "sum",
        context=2,
        cause=Cause.COMPACTION,
        step="summary",
        family="suffix_prompt",
        role=Role.MAIN_SUMMARY,
        origin="c3",
        new=12,
        output=30,
    )
    made.call(
        "c4", context=3, cause=Cause.COMPACTION, step="restart", family="kept_tail", origin="sum", new=60
    )
    made.call(
        "odd",
        context=4,
        cause=Cause.UNKNOWN,
        role=Role.UNKNOWN,
        confidence=Confidence.QUARANTINED,
        reason="a side call or a sub-agent",
        new=15,
    )
    made.admit("c3")
    made.admit("c2", stub=True)
    made.admit("sum")
    made.admit("s2")
    return made
