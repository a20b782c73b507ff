"""A few tokens through a pass and through the model as it came: whatever no name tells, numbers do.

A model may ignore our attention function, count positions by itself, keep a state, share keys between
layers or look ahead. All of that runs without an error and trains towards something else.
"""

from __future__ import annotations

import numpy as np
import torch

from gyre.elastic.engine.models.compare import narrow_windows
from gyre.trainer.errors import RefusedError
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import TreePass

_TOLERANCE = {"cpu": 1e-3, "cuda": 2e-2}
"""Difference of log-probabilities (L2) relative to how they vary: rounding makes 1e-5, on CUDA, where
products of fp32 may be rounded to TF32, 1e-3; another attention mostly more than 0.1."""

_FIRST_RUN = 5
_PARENTS = (-1, 0, 1, 2, 3, 4, 5, 6, 4, 8, 9, -1, 11)
"""Five tokens, two branches of three, and a root of two behind them."""


def require_exact(policy: Policy, tree_pass: TreePass, name: str) -> None:
    """RefusedError with what is wrong, unless `tree_pass` gives what `flat` gives."""
    try:
        with narrow_windows(policy.model), policy.precise():
            wanted_K = _logprobs(policy, FlatPass(policy, rows_tokens=1 << 10))
            found_K = _logprobs(policy, tree_pass)
    except RefusedError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise _refused(policy, name, f"their layers are not called as ours are: {first}") from error
    difference = float((found_K - wanted_K).norm() / (wanted_K - wanted_K.mean()).norm())
    if not difference <= _TOLERANCE[policy.device.type]:  # also when it is no number
        raise _refused(policy, name, f"log-probabilities are others than path by path, by {difference:.2g}")


def require_causal(policy: Policy) -> None:
    """RefusedError where what comes later on a path, or padding, changes a log-probability."""
    with policy.precise():
        alone_K = _logprobs(policy, FlatPass(policy), _piece(policy, _FIRST_RUN))
        within_K = _logprobs(policy, FlatPass(policy, rows_tokens=1 << 10))[:_FIRST_RUN]
    difference = float((within_K - alone_K).norm() / (alone_K - alone_K.mean()).norm())
    if not difference <= _TOLERANCE[policy.device.type]:
        raise RefusedError(
            f"`{policy.model.config.model_type}` models look ahead: they predict no next token"
        )


def _refused(policy: Policy, name: str, why: str) -> RefusedError:
    kind = policy.model.config.model_type
    return RefusedError(f'`pass = "{name}"` is wrong for `{kind}` models: {why}', HINT)


HINT = '`pass = "auto"` takes one that is right'


def _logprobs(policy: Policy, tree_pass: TreePass, piece: Piece | None = None) -> torch.Tensor:
    piece = piece or _piece(policy)
    return tree_pass(piece, torch.ones(len(piece.label_K))).logprobs_K


def _piece(policy: Policy, count: int = len(_PARENTS)) -> Piece:
    """The first `count` tokens; any ids do, and of each another one's log-probability."""
    parents_N = np.array(_PARENTS[:count])
    depth_N = np.zeros(count, dtype=np.int64)
    tout_N = np.arange(1, count + 1)
    for index, parent in enumerate(parents_N):
        depth_N[index] = depth_N[parent] + 1 if parent >= 0 else 0
    for index in reversed(range(count)):
        if parents_N[index] >= 0:
            tout_N[parents_N[index]] = max(tout_N[parents_N[index]], tout_N[index])
    rows = policy.vocab_size
    index_N = np.arange(count)
    return Piece(
        input_ids_N=(7 + 7919 * index_N) % rows,
        position_ids_N=depth_N,
        parent_N=parents_N,
        tout_N=tout_N,
        source_K=index_N,
        label_K=(11 + 104_729 * index_N) % rows,
        target_K=index_N,
    )
