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

HINT = '`pass = "auto"` takes one that is right'

_FIRST_RUN = 5
_PARENTS = (-1, 0, 1, 2, 3, 4, 5, 6, 4, 8, 9, 4, -1, 12)
"""Five tokens, two branches of three and one of one, and a root of two behind them."""


class Probe:
    """The model's own numbers, and passes compared with them."""

    def __init__(self, policy: Policy) -> None:
        """RefusedError where what comes later on a path, or padding, changes a log-probability."""
        self._policy = policy
        self._kind = policy.model.config.model_type
        with narrow_windows(policy.model), policy.precise():
            self._wanted_K = self._logprobs(FlatPass(policy, rows_tokens=1 << 10))
            alone_K = self._logprobs(FlatPass(policy), _FIRST_RUN)
        if not self._same(self._wanted_K[:_FIRST_RUN], alone_K):
            raise RefusedError(f"`{self._kind}` models look ahead: they predict no next token")

    def require_exact(self, tree_pass: TreePass, name: str) -> None:
        """RefusedError with what is wrong, unless `tree_pass` gives what the model gives path by path."""
        try:
            with narrow_windows(self._policy.model), self._policy.precise():
                found_K = self._logprobs(tree_pass)
        except RefusedError:
            raise
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            first, *_ = str(error).splitlines() or [type(error).__name__]
            raise self._refused(name, f"their layers are not called as ours are: {first}") from error
        if not self._same(found_K, self._wanted_K):
            off = _distance(found_K, self._wanted_K)
            raise self._refused(name, f"log-probabilities are others than path by path, by {off:.2g}")

    def _same(self, found_K: torch.Tensor, wanted_K: torch.Tensor) -> bool:
        return _distance(found_K, wanted_K) <= _TOLERANCE[self._policy.device.type]  # not where it is NaN

    def _refused(self, name: str, why: str) -> RefusedError:
        return RefusedError(f'`pass = "{name}"` is wrong for `{self._kind}` models: {why}', HINT)

    def _logprobs(self, tree_pass: TreePass, count: int = len(_PARENTS)) -> torch.Tensor:
        piece = _piece(self._policy, count)
        return tree_pass(piece, torch.ones(count)).logprobs_K


def _distance(found_K: torch.Tensor, wanted_K: torch.Tensor) -> float:
    return float((found_K - wanted_K).norm() / (wanted_K - wanted_K.mean()).norm())


def _piece(policy: Policy, count: int) -> Piece:
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
