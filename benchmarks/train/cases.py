"""The trees that are trained on: random ids, in the shapes that runs of agents have. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gyre.trainer.data.tree import TargetRun, TrainNode, TrainTree

SEED = 6
TINY, SMOLLM2 = "tiny", "smollm2"
VOCAB = 2048
"""Of `tiny`; the ids of a larger model are among them too."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    trees: Callable[[float], list[TrainTree]]
    """At a scale: 1 is what the name says."""
    scale: float = 1.0
    rounds: int = 100
    """At most; for trees that take minutes."""
    short: bool = False
    """For a look, without bars."""

    @property
    def label(self) -> str:
        return self.name if self.scale == 1 else f"{self.name}, x {self.scale:g}"

    def make(self) -> list[TrainTree]:
        return self.trees(self.scale)


class _Tree:
    """Nodes of one execution, with random ids."""

    def __init__(self, scale: float, number: int = 0) -> None:
        self._random = np.random.default_rng([SEED, number])
        self._scale = scale
        self._nodes: list[TrainNode] = []

    def context(self, parent: int, count: int) -> int:
        """Tokens that the agent wrote; the node's index."""
        return self._add(parent, self.ids(count), None)

    def sampled(self, parent: int, count: int) -> int:
        ids = self.ids(count)
        logprobs = np.full(len(ids), -1, np.float32)
        return self._add(parent, ids, TargetRun(logprobs=logprobs, temperature=1.0, trajectory=0))

    def turns(self, parent: int, count: int, sampled: int, context: int) -> list[int]:
        """Answers and what came back for each; the nodes after which a turn begins."""
        ends = []
        for _ in range(count):
            parent = self.context(self.sampled(parent, sampled), context)
            ends.append(parent)
        return ends

    def ids(self, count: int) -> np.typing.NDArray[np.int32]:
        return self._random.integers(0, VOCAB, max(1, round(count * self._scale)), dtype=np.int32)

    def take(self, parent: int, ids: np.typing.NDArray[np.int32]) -> int:
        """Context that other executions have too."""
        return self._add(parent, ids, None)

    def done(self, name: str) -> TrainTree:
        return TrainTree(execution_id=name, advantage=1.0, nodes=self._nodes)

    def _add(self, parent: int, ids: np.typing.NDArray[np.int32], target: TargetRun | None) -> int:
        self._nodes.append(TrainNode(parent=parent, token_ids=ids, target=target))
        return len(self._nodes) - 1


def _prefix(prompt: int, branches: int, answer: int) -> Callable[[float], list[TrainTree]]:
    def trees(scale: float) -> list[TrainTree]:
        tree = _Tree(scale)
        root = tree.context(-1, prompt)
        for _ in range(branches):
            tree.sampled(root, answer)
        return [tree.done("prefix")]

    return trees


def _agent(scale: float) -> list[TrainTree]:
    """A main conversation, one turn of it tried again, its summary, and two sub-agents."""
    tree = _Tree(scale)
    main = tree.turns(tree.context(-1, 700), 8, 60, 140)
    tree.sampled(tree.context(main[-2], 30), 250)
    tree.turns(main[2], 3, 60, 140)
    brief = tree.context(-1, 400)
    for _ in range(2):
        tree.turns(tree.context(brief, 60), 4, 60, 100)
    return [tree.done("agent")]


def _group(scale: float) -> list[TrainTree]:
    """Sixteen executions of one task: nothing in common but its prompt."""
    prompt = _Tree(scale).ids(1000)
    trees = []
    for number in range(16):
        tree = _Tree(scale, 1 + number)
        tree.turns(tree.take(-1, prompt), 2, 80, 70)
        trees.append(tree.done(f"run-{number}"))
    return trees


def _cases(agent: float, rounds: int, rounds_long: int) -> list[Case]:
    return [
        Case(name="1,500 and 3 x 300", trees=_prefix(1500, 3, 300), rounds=rounds),
        Case(name="6,000 and 3 x 500", trees=_prefix(6000, 3, 500), rounds=rounds_long),
        Case(name="agent, 5 trajectories", trees=_agent, scale=agent, rounds=rounds),
        Case(name="16 executions, one prompt", trees=_group, rounds=rounds_long),
    ]


# A step of SmolLM2 takes 8 s for 1,000 tokens, and of one path of 6,500 tokens 12 GB.
CASES = {TINY: _cases(1, 100, 100), SMOLLM2: _cases(0.5, 2, 1)}


def quick(case: Case) -> Case:
    return Case(name=case.name, trees=case.trees, scale=0.05, rounds=1, short=True)
