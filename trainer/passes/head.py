"""From hidden states to log-probabilities, entropies and gradients, at targets only and chunk by chunk.

A chunk's logits live until its part of the loss is differentiated, then they are gone: there is never an
N x V tensor, and the head runs once. The derivative of log softmax is written out, because the
probabilities are at hand for the entropy already:

    d logp(label) / d logit(v) = (1[v = label] - p(v)) / temperature

Shapes: K targets of a piece, k of them in one call; M rows of hidden states, D hidden, V vocabulary;
R rows of a chunk, each a hidden state at one temperature, and t targets read off them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from gyre.trainer.pack.piece import Ints, Piece
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import LossPart, PassOutput

CHUNK_BYTES = 64 << 20
"""Of fp32 logits at once, or as much as the head's weights take if that is more: each chunk's backward
pass reads and writes a gradient of that size, which few rows would not be worth."""


class Scores:
    """What a pass collects about a piece's targets, from as many parts as it likes."""

    def __init__(
        self, policy: Policy, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None
    ) -> None:
        self._policy = policy
        self._loss = loss
        count = len(piece.label_K)
        self._label_K = piece.label_K
        self._temperature_K = temperature_K.detach().float().cpu().numpy()
        self._logprobs_K = torch.zeros(count, device=policy.device)
        self._entropy_K = torch.zeros(count, device=policy.device)
        self._total = torch.zeros((), dtype=torch.float64, device=policy.device)

    def add(self, hidden_MD: torch.Tensor, row_k: Ints, which_k: Ints) -> torch.Tensor | None:
        """Score targets `which_k` of the piece, each read off the hidden state of `row_k`.

        With a loss: its gradient by `hidden_MD`, in that tensor's dtype and shape, to call `.backward()`
        with; gradients of the head are added to its weights at once. Without: None.
        """
        gradient_MD = None if self._loss is None else torch.zeros_like(hidden_MD)
        for chunk in self._chunks(row_k, which_k):
            self._chunk(chunk, hidden_MD.detach(), gradient_MD)
        return gradient_MD

    def output(self) -> PassOutput:
        """Waits for the device."""
        return PassOutput(
            logprobs_K=self._logprobs_K, entropy_K=self._entropy_K, loss=float(self._total.item())
        )

    def _chunks(self, row_k: Ints, which_k: Ints) -> Iterator[_Chunk]:
        """By row, so that one hidden state's targets share its logits."""
        temperature_k = self._temperature_K[which_k]
        order_k = np.lexsort((temperature_k, row_k))
        row_k, which_k, temperature_k = row_k[order_k], which_k[order_k], temperature_k[order_k]
        first_k = np.ones(len(row_k), dtype=bool)
        first_k[1:] = (np.diff(row_k) != 0) | (np.diff(temperature_k) != 0)
        place_k = np.cumsum(first_k) - 1
        start_k = np.flatnonzero(first_k)
        rows = self._policy.head_rows(CHUNK_BYTES)
        for start in range(0, len(start_k), rows):
            heads = start_k[start : start + rows]
            begin, end = np.searchsorted(place_k, (start, start + rows))
            yield self._to_device(
                row_k[heads], temperature_k[heads], place_k[begin:end] - start, which_k[begin:end]
            )

    def _to_device(
        self,
        row_R: Ints,
        temperature_R: np.ndarray[tuple[int], np.dtype[np.float32]],
        at_t: Ints,
        which_t: Ints,
    ) -> _Chunk:
        device = self._policy.device
        return _Chunk(
            row_R=torch.from_numpy(row_R).to(device),
            temperature_R=torch.from_numpy(temperature_R).to(device),
            plain=bool((temperature_R == 1).all()),
            at_t=torch.from_numpy(at_t).to(device),
            label_t=torch.from_numpy(self._label_K[which_t]).to(device),
            which_t=torch.from_numpy(which_t).to(device),
        )

    def _chunk(self, chunk: _Chunk, hidden_MD: torch.Tensor, gradient_MD: torch.Tensor | None) -> None:
        hidden_RD = hidden_MD[chunk.row_R].requires_grad_(gradient_MD is not None)
        with torch.set_grad_enabled(gradient_MD is not None):
            logits_RV = self._policy.head(hidden_RD)
        probs_RV, logprobs_t = self._softmax(chunk, logits_RV.detach())
        if gradient_MD is None:
            return
        derivative_t = self._differentiate(chunk, logprobs_t)
        by_logits_RV = _by_logits(chunk, probs_RV, derivative_t)
        torch.autograd.backward(logits_RV, by_logits_RV.to(logits_RV.dtype))
        assert hidden_RD.grad is not None
        gradient_MD.index_add_(0, chunk.row_R, hidden_RD.grad)

    @torch.no_grad()
    def _softmax(self, chunk: _Chunk, logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities (R, V) and log-probabilities (t,); notes the latter and entropies."""
        scaled_RV = logits_RV.float()  # of fp32 logits no copy: the head does not look at them again
        if not chunk.plain:
            scaled_RV.div_(chunk.temperature_R[:, None])
        scaled_RV.sub_(scaled_RV.amax(-1, keepdim=True))
        probs_RV = scaled_RV.exp()
        sum_R1 = probs_RV.sum(-1, keepdim=True)
        probs_RV.div_(sum_R1)
        logsum_R = sum_R1[:, 0].log()
        entropy_R = logsum_R - torch.linalg.vecdot(probs_RV, scaled_RV)
        logprobs_t = scaled_RV[chunk.at_t, chunk.label_t] - logsum_R[chunk.at_t]
        self._logprobs_K[chunk.which_t] = logprobs_t
        self._entropy_K[chunk.which_t] = entropy_R[chunk.at_t]
        return probs_RV, logprobs_t

    def _differentiate(self, chunk: _Chunk, logprobs_t: torch.Tensor) -> torch.Tensor:
        """The loss part's derivative by each log-probability, (t,)."""
        assert self._loss is not None
        with torch.enable_grad():
            loss = self._loss(logprobs_t.requires_grad_(), chunk.which_t)
        self._total += loss.detach()
        (derivative_t,) = torch.autograd.grad(loss, logprobs_t)
        return derivative_t


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    row_R: torch.Tensor
    temperature_R: torch.Tensor
    plain: bool
    """All temperatures are 1."""
    at_t: torch.Tensor
    """Index into R."""
    label_t: torch.Tensor
    which_t: torch.Tensor
    """Index into K."""


def _by_logits(chunk: _Chunk, probs_RV: torch.Tensor, derivative_t: torch.Tensor) -> torch.Tensor:
    """(R, V), in the memory of `probs_RV`."""
    sum_R = torch.zeros(len(probs_RV), device=probs_RV.device).index_add_(0, chunk.at_t, derivative_t)
    probs_RV.mul_(-sum_R[:, None])
    probs_RV.index_put_((chunk.at_t, chunk.label_t), derivative_t, accumulate=True)
    return probs_RV if chunk.plain else probs_RV.div_(chunk.temperature_R[:, None])
