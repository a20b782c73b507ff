"""What every pass does: log-probabilities of a piece's targets, and gradients of a loss over them.

The loss is a sum over targets and each term depends on one log-probability only (ratios of whole
executions enter as constants), so a pass may call it for any part of the targets at any time: chunk by
chunk, node by node. That is what lets `dfs` free a branch before the next one is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from gyre.trainer.pack.piece import Piece

LossPart = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logprobs_k fp32 with gradient, which_k: indices 0 to K - 1 of these targets in the piece, same device)
-> the sum of their loss terms, a scalar. Called for disjoint parts that make up all K targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutput:
    """Detached, on the device of the model."""

    logprobs_K: torch.Tensor
    """fp32, of softmax(logits / temperature)."""
    entropy_K: torch.Tensor
    """fp32, of the same distribution, in nats."""
    loss: float
    """Sum of what the loss parts returned; 0 without a loss."""


class TreePass(Protocol):
    """`flat`, `packed` or `dfs`."""

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        """Without `loss` no gradient is computed; with it gradients are added to the model's `.grad`."""
        ...
