"""What was computed of an update from some of its executions. The gradients of it lie in the parameters."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.trainer.gspo_measured import Measured
from gyre.trainer.pack.piece import Floats32, Targets
from gyre.trainer.update.report import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    targets: Targets
    logprobs_T: Floats32
    """With the weights that the update changes."""
    loss: float
    """Sum over targets, as gradients are; not divided yet."""
    entropy: float
    measured: Measured
    tokens: Tokens
