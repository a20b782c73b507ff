"""Trees as arrays: what a pass computes at once, and what the loss knows of each target.

A `Piece` is a forest in depth-first order. The subtree of token i is [i, tout[i]), so token q sees key k
exactly when k <= q < tout[k]: no N x N matrix is needed to say so. A target's log-probability depends on
its path only, and is read off the logits of the token before it, its *source*: where a path branches, one
source predicts the first token of each branch, and no token is computed twice. The last token of a path
predicts nothing that is trained and is no input at all; it is only a label.

Shapes: N tokens of a piece, K targets of a piece, T targets of a batch, E executions of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A packed forest and the targets that are computed with it. Several roots are separate sequences."""

    input_ids_N: Ints
    position_ids_N: Ints
    """Depth: the position on the path from the root, never the index in the piece."""
    parent_N: Ints
    """Index of the token before; -1 for the first token of a root."""
    tout_N: Ints
    """End of the token's subtree, exclusive."""
    source_K: Ints
    """Index of the token whose logits predict the target. Targets of one token may be many: first tokens
    of branches, and one position that several executions sampled."""
    label_K: Ints
    """The target's own id."""
    target_K: Ints
    """Which target of the batch it is: index into `Targets`. A target is in exactly one piece."""
    context: int = 0
    """Of the N tokens those that pieces before it compute as well: summed, what the split costs."""

    def __len__(self) -> int:
        return len(self.input_ids_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Every target of a batch, in the order execution, node, token. Unchanged by how it is split."""

    execution_T: Ints
    """Index of its execution: 0 to E - 1."""
    trajectory_T: Ints
    """Index, over the whole batch, of the trajectory that brings it first."""
    weight_T: Floats64
    """1 / |U_e|."""
    advantage_T: Floats64
    behaviour_T: Floats32
    """Log-probability it was sampled with; NaN where there is none that may be compared."""
    temperature_T: Floats32
    version_T: Ints
    """Index into `versions`; -1: not known."""
    versions: tuple[str, ...]
    executions: tuple[str, ...]
    """Names of the E executions, `name` or `name#attempt`."""
    trajectories: int
    """Over the whole batch."""

    def __len__(self) -> int:
        return len(self.execution_T)
