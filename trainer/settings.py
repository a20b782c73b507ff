"""What training can be told: the `[train]` table of a run's TOML file. Knows no torch.

`gyre train --config FILE` and a live run read the same table. An unknown key is an error that names the
nearest known one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from gyre.treebuilder.score import Advantage

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0)]


class PassName(StrEnum):
    """How a tree is run through the model."""

    AUTO = "auto"
    """By device, sizes and layer types."""
    FLAT = "flat"
    """A sequence per path, without sharing: what the others are compared with."""
    PACKED = "packed"
    """The whole piece in one masked pass."""
    DFS = "dfs"
    """Node by node; K/V of the prefix are kept and get gradients handed back."""


class Dtype(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    """Computed in bfloat16; weights, gradients and optimizer stay fp32."""


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class RatioForm(StrEnum):
    TOKEN = "token"
    """r_t A_t w_t: token-level importance weights, the paper's form."""
    EXECUTION = "execution"
    """stopgrad(s_e) pi_t / stopgrad(pi_t): GSPO-token with the execution as the sequence."""


class ClipLevel(StrEnum):
    """Over which targets the ratio is averaged that decides whether they give a gradient."""

    EXECUTION = "execution"
    TRAJECTORY = "trajectory"
    TOKEN = "token"
    OFF = "off"


class Importance(StrEnum):
    """What is done about answers that another policy sampled than the one at the batch's start."""

    TRUNCATED = "truncated"
    """w_t = min(pi_old / pi_behaviour, cap)."""
    OFF = "off"
    """w_t = 1: recorded log-probabilities are not needed."""


class Schedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    """Down to 0 at the last update."""
    COSINE = "cosine"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class LossSettings(_Table, frozen=True, kw_only=True):
    """`[train.loss]`; formulas in `gspo.py`."""

    ratio: RatioForm = RatioForm.TOKEN
    clip_level: ClipLevel = ClipLevel.EXECUTION
    clip_low: Share | None = None
    """Below 1; unset: 3e-4, or 0.2 where single tokens are clipped."""
    clip_high: Positive | None = None
    """Above 1; unset: 4e-4, or 0.2 where single tokens are clipped."""
    importance: Importance = Importance.TRUNCATED
    importance_cap: Positive = 2.0
    kl: NotNegative = 0.0
    """Weight of the divergence from the reference model, which is only loaded when it is not 0."""
    reference: str = ""
    """Folder of the reference model; unset: the model that training starts from."""


def clip_range(settings: LossSettings) -> tuple[float, float]:
    """(low, high) as set, or as published: GSPO's for means over many targets, PPO's for single ones."""
    low, high = (0.2, 0.2) if settings.clip_level is ClipLevel.TOKEN else (3e-4, 4e-4)
    return (
        low if settings.clip_low is None else settings.clip_low,
        high if settings.clip_high is None else settings.clip_high,
    )


class OptimizerSettings(_Table, frozen=True, kw_only=True):
    """`[train.optimizer]`: AdamW."""

    lr: Positive = 1e-6
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    """Of matrices only: biases and norms are left alone."""
    clip_norm: NotNegative = 1.0
    """Gradients are scaled down to this norm; 0: never."""
    schedule: Schedule = Schedule.CONSTANT
    warmup_updates: CountOrNone = 0
    """The learning rate rises linearly over so many updates."""


class CheckpointSettings(_Table, frozen=True, kw_only=True):
    """`[train.checkpoint]`"""

    every: CountOrNone = 10
    """Updates between two; 0: at the end only."""
    keep: Count = 2
    """Older ones are removed."""


class TrainSettings(_Table, frozen=True, kw_only=True):
    """`[train]`"""

    seed: CountOrNone = 0
    """Of the order of groups."""
    epochs: Count = 1
    """Of training on stored trees."""
    max_updates: Count | None = None
    groups_per_batch: Count = 8
    updates_per_batch: Count = 1
    """GSPO's paper has 4. Old log-probabilities are those of the batch's start."""
    advantage: Advantage = Advantage.GROUP
    shuffle_advantages: bool = False
    """A control that must not learn: within each group they are dealt out anew, by `seed`."""
    tree_pass: PassName = msgspec.field(default=PassName.AUTO, name="pass")
    token_budget: Count = 8192
    """Tokens computed at once. A single path may be longer."""
    recompute: bool | None = None
    """`dfs` computes nodes twice and keeps no activations of the path; unset: when the path is long."""
    device: Device = Device.AUTO
    dtype: Dtype = Dtype.FP32
    train: tuple[str, ...] = ("*",)
    """Patterns of parameter names that are trained, as `*.layers.*`."""
    freeze: tuple[str, ...] = ()
    """And of those among them that are not."""
    max_bad_updates: Count = 3
    """After so many in a row with a loss or gradient that is not finite the run stops."""
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
