"""Which pass runs a piece: the one asked for, if it is exact for the model, or the fastest that is."""

from __future__ import annotations

import torch

from gyre.trainer.errors import RefusedError
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.dfs import TOGETHER, DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.probe import HINT, Probe
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
    return _Exact(policy, budget, recompute).make(name)


class AutoPass:
    """Decides anew for every piece."""

    def __init__(self, policy: Policy, *, budget: int, recompute: bool | None = None) -> None:
        """RefusedError where not even `flat` is right."""
        self._policy = policy
        self._budget = budget
        self._recompute = recompute
        exact = _Exact(policy, budget, recompute)
        self._passes = {PassName.FLAT: exact.make(PassName.FLAT)}
        self.refused: dict[PassName, str] = {}
        """Why a pass is never taken."""
        for name in (PassName.PACKED, PassName.DFS):
            try:
                self._passes[name] = exact.make(name)
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


class _Exact:
    """Passes that are right for a model."""

    def __init__(self, policy: Policy, budget: int, recompute: bool | None) -> None:
        self._policy = policy
        self._budget = budget
        self._recompute = recompute
        self._probe: Probe | None = None

    def make(self, name: PassName) -> TreePass:
        """RefusedError with the reason where it would be wrong."""
        policy, budget = self._policy, self._budget
        match name:
            case PassName.PACKED:
                self._refuse(name, recurrent=True)
                packed = PackedPass(policy)
                self._require_exact(packed, name)
                return packed
            case PassName.DFS:
                self._refuse(name, recurrent=False)
                by_visit = DfsPass(policy, budget=budget, recompute=False, together=0)
                self._require_exact(by_visit, name)
                return DfsPass(policy, budget=budget, recompute=self._recompute)
            case _:
                by_path = FlatPass(policy, rows_tokens=budget)
                self._require_exact(by_path, name)
                return by_path

    def _require_exact(self, tree_pass: TreePass, name: PassName) -> None:
        tried = self._policy.tried
        if name not in tried:
            tried[name] = self._fault(tree_pass, name)
        if (fault := tried[name]) is not None:
            raise fault

    def _fault(self, tree_pass: TreePass, name: PassName) -> RefusedError | None:
        if self._probe is None:
            self._probe = Probe(self._policy)
        try:
            self._probe.require_exact(tree_pass, name)
        except RefusedError as error:
            return error
        return None

    def _refuse(self, name: PassName, *, recurrent: bool) -> None:
        """By what the layers are called."""
        found = list(self._policy.kinds.other)
        if recurrent and self._policy.kinds.recurrent:
            found.append("recurrent layers, whose state would run on from one branch into the next")
        if found:
            kind = self._policy.model.config.model_type
            what = f'`pass = "{name}"` would be wrong for `{kind}` models: they have {", ".join(found)}'
            raise RefusedError(what, HINT)
