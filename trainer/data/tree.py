"""One execution as training takes it: the nodes of its admitted paths, with all that the loss needs.

Values only. `read.py` makes them from a folder of trees, a live run from its builder.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRun:
    """What is known of the tokens of a node, each of which is a target."""

    logprobs: Floats | None
    """Of the distribution they were sampled from, one a token, natural; None when not captured."""
    temperature: float
    trajectory: int
    """Which of the execution's admitted trajectories brings it first: 0 to `trajectories` - 1."""
    versions: tuple[tuple[str, int, int], ...] = ()
    """(policy version, start, end) within the node."""
    comparable: bool = True
    """False: `logprobs` are not of the plain softmax at `temperature` (top_p and the like were set, or it
    is not known what they are of). They then take no part: importance weight 1, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainNode:
    parent: int
    """Index in `TrainTree.nodes`; -1 for a root."""
    token_ids: Ids
    target: TargetRun | None = None
    """None: context, no loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTree:
    """One scored execution. A target is never the first token of a root: nothing predicts that one."""

    execution_id: str
    attempt: int = 0
    group: str = ""
    reward: float = 0.0
    advantage: float = 0.0
    """The same for each of its targets."""
    trajectories: int = 1
    nodes: list[TrainNode] = field(default_factory=list)
    """Admitted nodes only, parents before children; none is empty."""

    @property
    def name(self) -> str:
        return name_of(self.execution_id, self.attempt)

    @property
    def targets(self) -> int:
        """|U_e|: unique targets of the admitted trajectories."""
        return sum(len(node.token_ids) for node in self.nodes if node.target is not None)

    @property
    def tokens(self) -> int:
        return sum(len(node.token_ids) for node in self.nodes)


def name_of(execution_id: str, attempt: int) -> str:
    """What an attempt is called where a text has to do: in messages, checkpoints and `Targets.executions`."""
    return f"{execution_id}#{attempt}" if attempt else execution_id
