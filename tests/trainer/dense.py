"""A packed pass in a few lines: stock attention under N x N masks, all logits at once.

What a first try at training on trees looks like, right or wrong by its arguments: `test_planted` makes the
mistakes that others made. Shapes: N tokens of a piece, K its targets, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.run import LossPart, PassOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A `TreePass` for models of full and sliding attention."""

    model: PreTrainedModel
    one_mask: bool = False
    """Planted: layers with a window get the mask of those without."""
    by_index: bool = False
    """Planted: positions, and distances within a window, are those in the piece."""

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        depth_N = torch.from_numpy(piece.position_ids_N)
        if self.by_index:
            depth_N = torch.arange(len(piece))
        with torch.set_grad_enabled(loss is not None):
            logits_NV = self.model(
                input_ids=torch.from_numpy(piece.input_ids_N)[None],
                position_ids=depth_N[None],
                attention_mask=self._masks(piece, depth_N),
                use_cache=False,
            ).logits[0]
            rows_KV = (logits_NV[piece.source_K] / temperature_K[:, None]).log_softmax(-1)
            logprobs_K = rows_KV.gather(1, torch.from_numpy(piece.label_K)[:, None])[:, 0]
            value = torch.zeros(()) if loss is None else loss(logprobs_K, torch.arange(len(logprobs_K)))
        if loss is not None:
            value.backward()
        entropy_K = -(rows_KV.exp() * rows_KV).sum(-1)
        return PassOutput(logprobs_K=logprobs_K.detach(), entropy_K=entropy_K.detach(), loss=value.item())

    def _masks(self, piece: Piece, depth_N: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        index_N = torch.arange(len(piece))
        tout_N = torch.from_numpy(piece.tout_N)
        sees_NN = (index_N <= index_N[:, None]) & (index_N[:, None] < tout_N)
        window = self.model.config.sliding_window
        near_NN = (
            sees_NN if window is None or self.one_mask else sees_NN & (depth_N[:, None] - depth_N < window)
        )
        if self.model.config.model_type == "mistral":
            return near_NN[None, None]
        return {"full_attention": sees_NN[None, None], "sliding_attention": near_NN[None, None]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A `TreePass` token by token with the library's own cache, for models of full attention."""

    model: PreTrainedModel
    hand_back: bool = True
    """False, planted: what comes before a branch point is a constant for what comes after."""

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        with torch.set_grad_enabled(loss is not None):
            rows_KV = (self._logits(piece)[piece.source_K] / temperature_K[:, None]).log_softmax(-1)
            logprobs_K = rows_KV.gather(1, torch.from_numpy(piece.label_K)[:, None])[:, 0]
            value = torch.zeros(()) if loss is None else loss(logprobs_K, torch.arange(len(logprobs_K)))
        if loss is not None:
            value.backward()
        return PassOutput(logprobs_K=logprobs_K.detach(), entropy_K=logprobs_K.detach(), loss=value.item())

    def _logits(self, piece: Piece) -> torch.Tensor:
        """(N, V)"""
        rows: list[torch.Tensor] = []
        kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        for index, parent in enumerate(piece.parent_N.tolist()):
            before = kept[parent] if parent >= 0 else []
            if parent != index - 1 and not self.hand_back:
                before = [(key.detach(), value.detach()) for key, value in before]
            cache = DynamicCache(before) if before else DynamicCache()
            ids = torch.tensor([[int(piece.input_ids_N[index])]])
            rows.append(self.model(input_ids=ids, cache=cache, use_cache=True).logits[0, 0])
            kept.append([(layer.keys, layer.values) for layer in cache.layers])
        return torch.stack(rows)
