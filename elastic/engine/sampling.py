"""From logits to tokens and their log-probabilities. Nothing here has a state.

Shapes: B rows, V vocabulary. A token is drawn by inverting the cumulative distribution over ids in
their own order: two tokens of nearly equal probability do not change places with rounding, as they
would in order of probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gyre.elastic.engine.noise import uniform
from gyre.elastic.engine.request import Alternative, PromptLogprob, SamplingParams

BLOCK = 64
"""Ids whose probabilities are added up first; the draw finds its block, then its id."""
FEW = 1024
"""How many of the most probable ids are sorted for `top_p`, unless their mass does not reach it."""

COLD = 1e-30
"""Lower temperatures are as this one: greedy but for ties."""


@dataclass(frozen=True, slots=True)
class Row:
    """How to draw from one row of logits."""

    params: SamplingParams
    position: int
    forced: int | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    id: int
    logprob: float
    """Of softmax(logits)."""
    sampling_logprob: float
    """Of the distribution drawn from. NaN as `logprob`: the logits were no numbers."""


def draw(logits_BV: torch.Tensor, rows: Sequence[Row]) -> list[Draw]:
    """One token for each row."""
    logits_BV = logits_BV.float()
    # One reading for the maximum, one for exp and sums: both are needed for log-probabilities anyway.
    peaks_B = logits_BV.amax(-1)
    weights_BV = torch.exp(logits_BV - peaks_B[:, None])
    blocks_BN = _blocks(weights_BV)
    totals_B = blocks_BN.sum(-1)
    if not bool(totals_B.isfinite().all()):
        return _with_nan(logits_BV, totals_B.isfinite().tolist(), rows)
    ids, sampling = _choose(logits_BV, peaks_B, weights_BV, blocks_BN, rows)
    index_B1 = torch.tensor(ids, device=logits_BV.device)[:, None]
    raw_B = logits_BV.gather(1, index_B1)[:, 0] - peaks_B - totals_B.log().float()
    raw = raw_B.tolist()
    return [
        Draw(id, logprob, logprob if own is None else own)
        for id, logprob, own in zip(ids, raw, sampling, strict=True)
    ]


def _with_nan(logits_BV: torch.Tensor, sound: list[bool], rows: Sequence[Row]) -> list[Draw]:
    """The sound rows drawn as ever; NaN for those whose logits are no numbers."""
    kept = [i for i, good in enumerate(sound) if good]
    drawn = dict(zip(kept, draw(logits_BV[kept], [rows[i] for i in kept]), strict=True)) if kept else {}
    return [drawn.get(i, Draw(0, math.nan, math.nan)) for i in range(len(rows))]


def _blocks(weights_BV: torch.Tensor) -> torch.Tensor:
    """Sums of successive blocks, (B, V / BLOCK) in fp64."""
    missing = -weights_BV.shape[1] % BLOCK
    padded = F.pad(weights_BV, (0, missing)) if missing else weights_BV
    return padded.view(len(padded), -1, BLOCK).sum(-1).double()


def _choose(
    logits_BV: torch.Tensor,
    peaks_B: torch.Tensor,
    weights_BV: torch.Tensor,
    blocks_BN: torch.Tensor,
    rows: Sequence[Row],
) -> tuple[list[int], list[float | None]]:
    """Ids, and log-probabilities of the distribution drawn from where that is not the raw one."""
    ids: list[int] = [0] * len(rows)
    sampling: list[float | None] = [None] * len(rows)
    neutral = [i for i, row in enumerate(rows) if _neutral(row)]
    if neutral:
        whole = len(neutral) == len(rows)
        chosen = _invert(
            weights_BV if whole else weights_BV[neutral],
            blocks_BN if whole else blocks_BN[neutral],
            [rows[i] for i in neutral],
        )
        for i, id in zip(neutral, chosen, strict=True):
            ids[i] = id
    for i, row in enumerate(rows):
        if row.params.temperature == 0:
            ids[i] = int(logits_BV[i].argmax()) if row.forced is None else row.forced
            sampling[i] = 0.0
        elif not _neutral(row):
            ids[i], sampling[i] = _shaped(logits_BV[i], peaks_B[i], row)
    return ids, sampling


def _neutral(row: Row) -> bool:
    params = row.params
    return (
        params.temperature == 1
        and row.forced is None
        and params.top_p == 1
        and params.top_k <= 0
        and params.min_p == 0
    )


def _shaped(logits_V: torch.Tensor, peak: torch.Tensor, row: Row) -> tuple[int, float]:
    """Draw with temperature and cuts; the order is vLLM's: min_p, top_k, top_p."""
    # fp32 has no number for a temperature of 1e-50: 0 / 0 would be the result.
    weights_V = torch.exp((logits_V - peak) / max(row.params.temperature, COLD))
    floor = threshold(weights_V, row.params)
    weights_V = torch.where(weights_V >= floor, weights_V, 0.0)
    blocks_1N = _blocks(weights_V[None])
    id = row.forced
    if id is None:
        id = _invert(weights_V[None], blocks_1N, [row])[0]
    return id, float(weights_V[id].double().log() - blocks_1N.sum().log())


def threshold(weights_V: torch.Tensor, params: SamplingParams) -> float:
    """The least weight that may be drawn, of weights whose largest is 1; ties with it stay in."""
    floor = params.min_p
    if 0 < params.top_k < len(weights_V):
        floor = max(floor, float(weights_V.topk(params.top_k).values[-1]))
    if params.top_p < 1:
        floor = max(floor, _top_p(weights_V, floor, params.top_p))
    return floor


def _top_p(weights_V: torch.Tensor, floor: float, top_p: float) -> float:
    """The least weight of the smallest set, of weights from `floor` on, whose share reaches `top_p`."""
    wanted = float(torch.where(weights_V >= floor, weights_V, 0.0).sum(dtype=torch.float64)) * top_p
    for count in (min(FEW, len(weights_V)), len(weights_V)):
        largest = weights_V.topk(count).values
        reached = largest.double().cumsum(0) >= wanted
        if reached.any():
            return float(largest[int(reached.to(torch.uint8).argmax())])
    return floor


def _invert(weights_BV: torch.Tensor, blocks_BN: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """For each row the id at which the cumulative weight passes its noise; never one of weight 0."""
    ends_BN = blocks_BN.cumsum(-1)
    noise = torch.tensor([uniform(row.params.seed, row.position) for row in rows], dtype=torch.float64)
    totals_B1 = ends_BN[:, -1:]
    # Below the total also where the product rounds up to it: the search must end at a block with weight.
    targets_B1 = torch.minimum(noise.to(ends_BN.device)[:, None] * totals_B1, totals_B1 * (1 - 2**-52))
    block_B1 = torch.searchsorted(ends_BN, targets_B1, right=True)
    rest_B1 = targets_B1 - (ends_BN.gather(1, block_B1) - blocks_BN.gather(1, block_B1))
    rest_B1.clamp_(min=0)  # rounding can make it less, and the first id would be chosen whatever its weight
    index_BK = (block_B1 * BLOCK + torch.arange(BLOCK, device=block_B1.device)).clamp_(
        max=weights_BV.shape[1] - 1
    )
    inside_BK = weights_BV.gather(1, index_BK).double().cumsum(-1)
    # The sums of a block in fp32 and in fp64 differ by rounding: never past its last id with weight.
    rest_B1 = torch.minimum(rest_B1, inside_BK[:, -1:] * (1 - 2**-52))
    within_B1 = torch.searchsorted(inside_BK, rest_B1, right=True)
    ids: list[int] = index_BK.gather(1, within_B1)[:, 0].tolist()
    return ids


def most_probable(logits_V: torch.Tensor, count: int) -> tuple[Alternative, ...]:
    """The `count` most probable ids of softmax(logits)."""
    logprobs_V = torch.log_softmax(logits_V.float(), -1)
    values, ids = logprobs_V.topk(min(count, len(logprobs_V)))
    return tuple(map(Alternative, ids.tolist(), values.tolist()))


def prompt_logprobs(logits_PV: torch.Tensor, targets: Sequence[int], count: int) -> list[PromptLogprob]:
    """For each row, the token that really followed, with the `count` most probable ones."""
    logprobs_PV = torch.log_softmax(logits_PV.float(), -1)
    own_P1 = logprobs_PV.gather(1, torch.tensor(targets, device=logits_PV.device)[:, None])
    ranks_P = (logprobs_PV > own_P1).sum(-1) + 1
    tops = [most_probable(row_V, count) if count else () for row_V in logits_PV]
    own, ranks = own_P1[:, 0].tolist(), ranks_P.tolist()
    return [PromptLogprob(*one) for one in zip(targets, own, ranks, tops, strict=True)]
