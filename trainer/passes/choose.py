"""Which pass runs a piece: the one asked for, if it is exact for the model, or the fastest that is."""

from __future__ import annotations

import torch

from gyre.trainer.errors import RefusedError
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.dfs import TOGETHER, DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.probe import HINT, require_causal, require_exact
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from gyre.trainer.passes.visits import visits
from gyre.trainer.settings import PassName

LONG_VISIT = 512
"""Tokens of a visit, on average, from which `dfs` is as fast on CPU as `packed`: what a visit costs beside
its tokens is then under a tenth. It is preferred there because it keeps one path, not a piece."""


def choose(policy: Policy, name: PassName, *, budget: int, recompute: bool | None = None) -> TreePass:
    """The pass of this name, compared with `flat` on a few tokens first.

    `budget`: tokens that may be computed at once; `recompute` as for `DfsPass`.

    Raises:
        RefusedError: it would be silently wrong on this model; says why.
    """
    if name is PassName.AUTO:
        return AutoPass(policy, budget=budget, recompute=recompute)
    return _exact(policy, name, budget, recompute)


class AutoPass:
    """Decides anew for every piece."""

    def __init__(self, policy: Policy, *, budget: int, recompute: bool | None = None) -> None:
        """RefusedError where not even `flat` is right."""
        self._policy = policy
        self._budget = budget
        self._recompute = recompute
        self._passes = {PassName.FLAT: _exact(policy, PassName.FLAT, budget, recompute)}
        self.refused: dict[PassName, str] = {}
        """Why a pass is never taken."""
        for name in (PassName.PACKED, PassName.DFS):
            try:
                self._passes[name] = _exact(policy, name, budget, recompute)
            except RefusedError as error:
                self.refused[name] = error.message

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        """As `TreePass`."""
        return self._passes[self.pick(piece)](piece, temperature_K, loss)

    def pick(self, piece: Piece) -> PassName:
        """The pass that runs this piece."""
        usual = PassName.DFS if self._suits_dfs(piece) else PassName.PACKED
        for name in (usual, PassName.DFS, PassName.PACKED):
            if name in self._passes:
                return name
        return PassName.FLAT

    def _suits_dfs(self, piece: Piece) -> bool:
        if self._recompute or int(piece.position_ids_N.max(initial=0)) >= self._budget:
            return True
        on_cpu = self._policy.device.type == "cpu"
        return on_cpu and len(piece) >= LONG_VISIT * len(visits(piece, limit=None, together=TOGETHER))


def _exact(policy: Policy, name: PassName, budget: int, recompute: bool | None) -> TreePass:
    match name:
        case PassName.PACKED:
            _require_mask(policy)
            packed = PackedPass(policy)
            require_exact(policy, packed, name)
            return packed
        case PassName.DFS:
            _require_plain(policy, name)
            require_exact(policy, DfsPass(policy, budget=budget, recompute=False, together=0), name)
            return DfsPass(policy, budget=budget, recompute=recompute)
        case _:
            require_causal(policy)
            return FlatPass(policy, rows_tokens=budget)


def _require_mask(policy: Policy) -> None:
    """Of layers of which a mask says everything."""
    if policy.kinds.recurrent:
        what = "recurrent layers, whose state would run on from one branch into the next"
        raise _refused(policy, PassName.PACKED, what)
    _require_plain(policy, PassName.PACKED)


def _require_plain(policy: Policy, name: PassName) -> None:
    if policy.kinds.other:
        raise _refused(policy, name, ", ".join(policy.kinds.other))


def _refused(policy: Policy, name: PassName, what: str) -> RefusedError:
    kind = policy.model.config.model_type
    return RefusedError(f'`pass = "{name}"` would be wrong for `{kind}` models: they have {what}', HINT)
