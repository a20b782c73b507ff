"""Pieces through a network, one after the other: stopped between two, and told where memory is too small.

Shapes: T targets of an update, K of a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from gyre.trainer.errors import TrainError
from gyre.trainer.gspo import Objective
from gyre.trainer.pack.piece import Piece, Targets
from gyre.trainer.pack.work import measure
from gyre.trainer.update.network import Network
from gyre.trainer.update.ranks import Ranks


class Stopped(Exception):
    """Asked to stop in the middle of an update. Weights and optimizer are as they were before it."""


class DoesNotFit(Exception):
    """Into memory, but half the budget might."""


@dataclass(slots=True, kw_only=True)
class Sums:
    """What the passes over some pieces come to."""

    logprobs_T: torch.Tensor
    loss: float = 0.0
    entropy: float = 0.0


class Computing:
    """Of one rank, with its own pieces; what it gives is of all of them."""

    def __init__(self, ranks: Ranks, stop: Callable[[], bool], at: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._stop = stop
        self._at = at

    def score(self, network: Network, targets: Targets, pieces: Sequence[Piece], budget: int) -> torch.Tensor:
        """Log-probabilities of all targets, (T,) fp32, without gradient."""
        logprobs_T = torch.zeros(len(targets), device=network.device)
        tree_pass = network.tree_pass(budget)

        def run(piece: Piece) -> None:
            out = tree_pass(piece, _temperatures(targets, piece, network.device))
            logprobs_T[_place(piece, network.device)] = out.logprobs_K

        self._each(network, pieces, run, budget, grad=False)
        self._ranks.sum_(logprobs_T)
        return logprobs_T

    def differentiate(
        self, network: Network, objective: Objective, pieces: Sequence[Piece], budget: int
    ) -> Sums:
        """Gradients, summed over targets and ranks and added to what is there; not divided yet."""
        device, targets = network.device, objective.targets
        sums = Sums(logprobs_T=torch.zeros(len(targets), device=device))
        tree_pass = network.tree_pass(budget)

        def run(piece: Piece) -> None:
            self._at("piece")
            place_K = _place(piece, device)
            out = tree_pass(piece, _temperatures(targets, piece, device), objective.part(place_K))
            sums.logprobs_T[place_K] = out.logprobs_K
            sums.entropy += float(out.entropy_K.sum(dtype=torch.float64))
            sums.loss += out.loss

        self._each(network, pieces, run, budget, grad=True)
        both = torch.tensor([sums.loss, sums.entropy], dtype=torch.float64, device=device)
        self._ranks.sum_(both)
        self._ranks.sum_(sums.logprobs_T)
        sums.loss, sums.entropy = both.tolist()
        return sums

    def _each(
        self,
        network: Network,
        pieces: Sequence[Piece],
        run: Callable[[Piece], None],
        budget: int,
        *,
        grad: bool,
    ) -> None:
        """Ranks have different pieces: what one of them meets is told to all when each is done."""
        done, full = 0, False
        try:
            with self._ranks.passes(network.policy.model, grad=grad):
                for piece in pieces:
                    self._boundary()
                    run(piece)
                    done += 1
        except (RuntimeError, MemoryError) as problem:
            if not out_of_memory(problem):
                raise
            full = True  # no more from in here: the traceback holds what has to be freed
        if full and not self._ranks.can_redo:
            text = f"memory does not suffice for `token_budget` = {budget}"
            raise TrainError(text, "go on with `--resume` and a smaller one")
        if self._ranks.any(full):
            self._smaller(pieces[done:])
        if self._ranks.any(self._stop()):
            raise Stopped

    def _boundary(self) -> None:
        """Others would wait for a rank that stops by itself."""
        if self._ranks.size == 1 and self._stop():
            raise Stopped

    def _smaller(self, left: Sequence[Piece]) -> NoReturn:
        """The first of `left` did not fit; nothing is left where it was another rank's."""
        if self._ranks.any(bool(left) and measure(left[0]).paths <= 1):
            longest = max((measure(piece).longest_path for piece in left), default=0)
            raise TrainError(
                f"a single path does not fit into memory (the longest here has {longest} tokens)",
                'set `pass = "dfs"` and `recompute = true`, or leave the longest executions out',
            )
        raise DoesNotFit


def out_of_memory(problem: BaseException) -> bool:
    """Of a device, or of the machine: torch has no class of its own for that one."""
    known = isinstance(problem, torch.OutOfMemoryError | MemoryError)
    return known or "can't allocate memory" in str(problem)


def _place(piece: Piece, device: torch.device) -> torch.Tensor:
    """Which targets of the update the piece has, (K,)."""
    return torch.from_numpy(piece.target_K).to(device)


def _temperatures(targets: Targets, piece: Piece, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(targets.temperature_T[piece.target_K]).to(device)
