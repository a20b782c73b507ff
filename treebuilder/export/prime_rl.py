"""`prime-rl`: `list[TrainingSample]` as prime-rl's own msgpack (read against its August 2026 main).

A sample is one flat sequence with a mask, as our rows are. Its `rl_weights` make each execution count
the same although prime-rl divides by all tokens: mean targets of an execution / targets of this one.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from gyre.treebuilder.export.rows import Place, Row


class TrainingSample(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """Fields in prime-rl's order: the position names them."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: None = None
    routed_experts: None = None
    mm_token_type_ids: None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


def mean_targets(places: Collection[Place]) -> float:
    return sum(place.summary.kept_targets for place in places) / len(places) if places else 0.0


def sample(row: Row, mean: float) -> TrainingSample:
    """`mean` is that of all executions of the export."""
    return TrainingSample(
        token_ids=row.token_ids.tolist(),
        mask=row.target_mask.tolist(),
        logprobs=row.own_logprobs.tolist(),
        temperatures=_temperatures(row),
        env_name=row.place.summary.task or "gyre",
        rl_weights=np.where(row.target_mask, mean * row.weight, 0.0).tolist(),
        advantages=np.where(row.target_mask, row.place.advantage, 0.0).tolist(),
    )


def _temperatures(row: Row) -> list[float]:
    """Each trained token has its call's, and so has the token before an answer: prime-rl's trainer divides
    the logits at a position, which are those of the next token, by the temperature of the position."""
    found = np.where(np.isnan(row.temperatures), 1.0, row.temperatures)
    before = ~row.target_mask[:-1] & row.target_mask[1:]
    found[:-1][before] = found[1:][before]
    values: list[float] = found.tolist()
    return values
