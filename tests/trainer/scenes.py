"""A batch of random trees with a small model, in the middle of training: some executions are clipped.

Recorded log-probabilities are near the model's own but not equal, so that importance weights are on both
sides of 1 and some above their cap; old ones are a little off too, so that ratios are on both sides of the
clip. Shapes: T targets of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from transformers import PreTrainedModel

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.settings import ClipLevel, LossSettings, RatioForm
from tests.trainer import oracle
from tests.trainer.builders import Shape, random_trees, with_logprobs
from tests.trainer.models import Kind, tiny_model

CLIP = {"clip_low": 3e-3, "clip_high": 4e-3}
LOSSES = (
    LossSettings(**CLIP),
    LossSettings(ratio=RatioForm.EXECUTION, **CLIP),
    LossSettings(clip_level=ClipLevel.TRAJECTORY, kl=0.1, **CLIP),
    LossSettings(clip_level=ClipLevel.TOKEN, clip_low=0.03, clip_high=0.03),
    LossSettings(clip_level=ClipLevel.OFF, ratio=RatioForm.EXECUTION, importance_cap=1.2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    model: PreTrainedModel
    trees: list[TrainTree]
    packed: Packed
    settings: LossSettings
    old_T: torch.Tensor
    reference_T: torch.Tensor
    truth: oracle.Truth


@cache
def model(kind: Kind) -> PreTrainedModel:
    return tiny_model(kind)


@lru_cache(64)
def scene(kind: Kind, seed: int, shape: Shape | None = None, settings: LossSettings | None = None) -> Scene:
    """The same for the same arguments; the loss is one after another of `LOSSES` unless given."""
    return of(model(kind), random_trees(seed, shape), seed, settings or LOSSES[seed % len(LOSSES)])


def of(model: PreTrainedModel, trees: list[TrainTree], seed: int, settings: LossSettings) -> Scene:
    with torch.no_grad():
        now_T = oracle.logprobs(model, trees)
    draws = torch.Generator().manual_seed(seed)
    recorded_T = now_T + 0.5 * torch.randn(len(now_T), generator=draws)
    old_T = (now_T + 0.05 * torch.randn(len(now_T), generator=draws)).float()
    reference_T = (now_T + 0.3 * torch.randn(len(now_T), generator=draws)).float()
    trees = with_logprobs(trees, recorded_T.tolist())
    return Scene(
        model=model,
        trees=trees,
        packed=merge(trees),
        settings=settings,
        old_T=old_T,
        reference_T=reference_T,
        truth=oracle.truth(model, trees, settings, old_T, reference_T),
    )
