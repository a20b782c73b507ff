"""One forward pass over whole rows, and its backward pass.

Shapes: B rows, S tokens of a row, D hidden; k targets read off these rows.
"""

from __future__ import annotations

from typing import Any

import torch

from gyre.trainer.pack.piece import Ints
from gyre.trainer.passes.head import Scores
from gyre.trainer.passes.policy import Policy


def run_rows(
    policy: Policy,
    scores: Scores,
    input_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor | None,
    row_k: Ints,
    which_k: Ints,
    *,
    train: bool,
    **kwargs: Any,
) -> None:
    """Score targets `which_k`; target i is read off token `row_k[i]`, counted through all rows.

    With `train` gradients are added to the model's; `scores` then has a loss. `kwargs` go to the model.
    """
    with torch.set_grad_enabled(train):
        hidden_MD = policy.hidden(input_ids_BS, position_ids_BS, **kwargs).flatten(0, 1)
    gradient_MD = scores.add(hidden_MD, row_k, which_k)
    if gradient_MD is not None and hidden_MD.requires_grad:  # not where only the head is trained
        torch.autograd.backward(hidden_MD, gradient_MD)
