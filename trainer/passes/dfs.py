"""`dfs`: a tree is computed visit by visit, and what a branch needed is freed before the next one.

Forward on the way down: keys and values are kept, targets are scored and differentiated at once. Backward
on the way up: by then all branches have handed their gradients back. Alive is one path from a root to a leaf.

With recomputation a visit that others hang on is first computed without graph, for its keys and values
alone, and once more when all of those are done: alive are then one visit's activations and one path's keys
and values. That is what takes the place of the library's activation checkpointing, which drops caches.

Shapes: N tokens of a piece, K targets, S tokens of a visit, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.attention import NAME
from gyre.trainer.passes.head import Scores
from gyre.trainer.passes.path import PathMemory
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.recurrent import State, States, fork
from gyre.trainer.passes.run import LossPart, PassOutput
from gyre.trainer.passes.visits import Visit, visits

TOGETHER = 256
"""Subtrees are masked against each other, rather than visited one by one, up to so many tokens. A visit
costs a read and a write of all weights' gradients, on CPU as much as some dozens of tokens."""


class DfsPass:
    """Any attention, exactly; any model whose recurrent layers keep their state in a cache."""

    def __init__(
        self, policy: Policy, *, budget: int, recompute: bool | None = None, together: int = TOGETHER
    ) -> None:
        """budget: tokens whose activations may be alive at once.

        recompute None: where the longest path has more tokens than that. With recomputation no visit has
        more, so that a path of any length fits.
        together: tokens up to which subtrees are computed at once; 0: never.
        """
        self._policy = policy
        self._budget = budget
        self._recompute = recompute
        # A recurrent state runs over all tokens of a visit.
        self._together = 0 if policy.kinds.recurrent else together

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        """As `TreePass`."""
        scores = Scores(self._policy, piece, temperature_K, loss)
        limit = self._limit(piece)
        if plan := visits(piece, limit=limit, together=self._together):
            again = loss is not None and limit is not None
            _Walk(self._policy, piece, scores, plan, again=again, backward=loss is not None).run()
        return scores.output()

    def _limit(self, piece: Piece) -> int | None:
        """Tokens of a visit where it is computed twice; None: nothing is."""
        longest = int(piece.position_ids_N.max(initial=-1)) + 1
        wanted = longest > self._budget if self._recompute is None else self._recompute
        return self._budget if wanted else None


@dataclass(slots=True, kw_only=True)
class _Open:
    """A visit that was computed and has its backward pass to come."""

    visit: Visit
    index: int
    start: State
    """Of recurrent layers before the visit."""
    fork: State
    """And after it, for what hangs on it."""
    roots: list[torch.Tensor]
    """With graph: hidden states (S, D) first, then recurrent states. Empty: to be computed again."""
    gradient_SD: torch.Tensor | None


class _Walk:
    """One piece, once."""

    def __init__(
        self, policy: Policy, piece: Piece, scores: Scores, plan: list[Visit], *, again: bool, backward: bool
    ) -> None:
        self._policy = policy
        self._piece = piece
        self._scores = scores
        self._visits = plan
        self._again = again
        self._backward = backward
        capacity = max(visit.depth + len(visit) for visit in plan)
        self._memory = PathMemory(piece, capacity=capacity, gradients=backward)
        self._open: list[_Open] = []
        self._order_K = np.argsort(piece.source_K, kind="stable")
        self._sorted_K = piece.source_K[self._order_K]

    def run(self) -> None:
        with self._policy.attention(NAME):
            for index, visit in enumerate(self._visits):
                self._leave_until(visit.parent)
                self._open.append(self._enter(index, visit))
            self._leave_until(-1)

    def _enter(self, index: int, visit: Visit) -> _Open:
        start = self._open[-1].fork if self._open else {}
        later = self._again and visit.children
        with torch.set_grad_enabled(self._backward and not later):
            hidden_SD, left = self._compute(visit, start)
        return _Open(
            visit=visit,
            index=index,
            start=start,
            fork=fork(left, gradients=self._backward) if visit.children else {},
            roots=[] if later else [hidden_SD, *left.values()],
            gradient_SD=None if later else self._score(visit, hidden_SD),
        )

    def _leave_until(self, parent: int) -> None:
        """Back to the visit of this index, whose next branch is computed now."""
        while self._open and self._open[-1].index != parent:
            closed = self._open.pop()
            if self._backward:
                self._leave(closed)

    def _leave(self, closed: _Open) -> None:
        if not closed.roots:
            with torch.enable_grad():
                hidden_SD, left = self._compute(closed.visit, closed.start)
            closed.roots = [hidden_SD, *left.values()]
            closed.gradient_SD = self._score(closed.visit, hidden_SD)
        given = [closed.gradient_SD, *(state.grad for state in closed.fork.values())]
        roots, gradients = [], []
        for root, gradient in zip(closed.roots, given, strict=False):
            if root.requires_grad and gradient is not None:
                roots.append(root)
                gradients.append(gradient)
        if roots:  # not where only the head is trained
            torch.autograd.backward(roots, gradients)

    def _compute(self, visit: Visit, start: State) -> tuple[torch.Tensor, State]:
        """Hidden states (S, D), and states after the last token."""
        self._memory.enter(visit)
        own, device = slice(visit.start, visit.end), self._policy.device
        ids_1S = torch.from_numpy(self._piece.input_ids_N[None, own]).to(device)
        position_1S = torch.from_numpy(self._piece.position_ids_N[None, own]).to(device)
        if not self._policy.kinds.recurrent:
            return self._policy.hidden(ids_1S, position_1S, tree=self._memory)[0], {}
        states = States(self._policy.model.config, start)
        hidden_1SD = self._policy.hidden(ids_1S, position_1S, tree=self._memory, cache=states, use_cache=True)
        return hidden_1SD[0], states.left()

    def _score(self, visit: Visit, hidden_SD: torch.Tensor) -> torch.Tensor | None:
        """Of the targets that are read off its tokens; the gradient by `hidden_SD`."""
        first, last = np.searchsorted(self._sorted_K, (visit.start, visit.end))
        which_k = self._order_K[first:last]
        return self._scores.add(hidden_SD, self._piece.source_K[which_k] - visit.start, which_k)
