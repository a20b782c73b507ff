"""A sequence per path, through the model as it came: what the other passes are compared with.

Rows are padded on the right, and no mask tells the model so: attention, convolutions and recurrent states
look backwards only, and nothing is read off the padding.

Shapes: N tokens of a piece, K its targets, B rows, S tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from gyre.trainer.pack.paths import Path, paths
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.head import Scores
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.rows import run_rows
from gyre.trainer.passes.run import LossPart, PassOutput

_FILLED = 0.75
"""Of the longest row the part that each other row of a batch has at least."""


class FlatPass:
    """Every path from a root to a leaf on its own; each target is scored in the first one that has it."""

    def __init__(self, policy: Policy, *, rows_tokens: int = 0) -> None:
        """`rows_tokens`: most tokens of a batch of rows, padding counted; 0: one row at a time."""
        self._policy = policy
        self._rows_tokens = rows_tokens

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        scores = Scores(self._policy, piece, temperature_K, loss)
        for batch in self._batches(paths(piece)):
            self._run(piece, batch, scores, train=loss is not None)
        return scores.output()

    def _batches(self, found: list[Path]) -> Iterator[list[Path]]:
        """Of similar length, longest first, so that too large a batch shows at once."""
        batch: list[Path] = []
        for path in sorted(found, key=len, reverse=True):
            longest = len(batch[0]) if batch else 0
            if batch and not (
                (len(batch) + 1) * longest <= self._rows_tokens and len(path) >= _FILLED * longest
            ):
                yield batch
                batch = []
            batch.append(path)
        if batch:
            yield batch

    def _run(self, piece: Piece, batch: list[Path], scores: Scores, *, train: bool) -> None:
        longest = len(batch[0])
        ids_BS = np.zeros((len(batch), longest), dtype=np.int64)  # any id serves as padding
        for row_S, path in zip(ids_BS, batch, strict=True):
            row_S[: len(path)] = piece.input_ids_N[path.tokens_S]
        which_k = np.concatenate([path.targets_k for path in batch])
        row_k = np.concatenate(
            [
                row * longest + piece.position_ids_N[piece.source_K[path.targets_k]]
                for row, path in enumerate(batch)
            ]
        )
        # Without positions the model counts them itself, and keeps the fast causal attention.
        run_rows(
            self._policy,
            scores,
            torch.from_numpy(ids_BS).to(self._policy.device),
            None,
            row_k,
            which_k,
            train=train,
        )
