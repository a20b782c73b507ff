"""`packed`: a whole piece in one forward and one backward pass, each token once.

Exact for layers that a mask says everything about. A recurrent layer would run through all branches one
after the other, without any error: `choose` refuses it.
"""

from __future__ import annotations

import numpy as np
import torch

from gyre.trainer.pack.piece import Ints, Piece
from gyre.trainer.passes.attention import NAME
from gyre.trainer.passes.blocks import Blocked
from gyre.trainer.passes.head import Scores
from gyre.trainer.passes.masks import CALL, ROWS
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.rows import run_rows
from gyre.trainer.passes.run import LossPart, PassOutput
from gyre.trainer.passes.tiled import Tiled


class PackedPass:
    """One row of all tokens of a piece, at the positions that they have on their paths."""

    def __init__(self, policy: Policy, *, tile_rows: int = ROWS, tile_call: int = CALL) -> None:
        """`tile_rows`, `tile_call`: how attention is cut on CPU, see `masks.py`."""
        self._policy = policy
        self._tile_rows = tile_rows
        self._tile_call = tile_call

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        """As `TreePass`."""
        policy, scores = self._policy, Scores(self._policy, piece, temperature_K, loss)
        tree: Blocked | Tiled
        if policy.device.type == "cuda":
            tree = Blocked(piece, policy.device)
            length = tree.length
        else:
            tree = Tiled(piece, self._tile_rows, self._tile_call)
            length = len(piece)
        with policy.attention(NAME):
            run_rows(
                policy,
                scores,
                self._row(piece.input_ids_N, length),
                self._row(piece.position_ids_N, length),
                piece.source_K,
                np.arange(len(piece.source_K)),
                train=loss is not None,
                tree=tree,
            )
        return scores.output()

    def _row(self, values_N: Ints, length: int) -> torch.Tensor:
        """(1, length), filled up with 0."""
        row_M = np.zeros(length, dtype=np.int64)
        row_M[: len(values_N)] = values_N
        return torch.from_numpy(row_M)[None].to(self._policy.device)
