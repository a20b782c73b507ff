"""From logits to tokens and their log-probabilities. Nothing here has a state.

Shapes: B rows, V vocabulary. A token is drawn by inverting cumulative distributions over ids in their
own order: two tokens of nearly equal probability do not change places with rounding, as they would in
order of probability. See `_invert` for why there is more than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from gyre.elastic.engine.compute.noise import uniforms
from gyre.elastic.engine.request import Alternative, PromptLogprob, SamplingParams

BRANCHES = 64
"""Parts of which each draw chooses one: ids, or sums of so many of them, or sums of these."""
FEW = 1024
"""How many of the most probable ids are sorted for `top_p`, unless their mass does not reach it."""

COLD, HOT = 1e-30, 1e30
"""Temperatures beyond are as these: greedy but for ties, and all alike. fp32 has no number for 1e-50."""


class Row(NamedTuple):
    """How to draw from one row of logits."""

    params: SamplingParams
    position: int
    forced: int | None = None


class Draw(NamedTuple):
    id: int
    logprob: float
    """Of softmax(logits)."""
    sampling_logprob: float
    """Of the distribution drawn from. NaN as `logprob`: the logits were no numbers."""


def draw(logits_BV: torch.Tensor, rows: Sequence[Row]) -> list[Draw]:
    """One token for each row."""
    logits_BV = logits_BV.float()
    if all(row.params.temperature == 0 and row.forced is None for row in rows):
        most = torch.log_softmax(logits_BV, -1).amax(-1).tolist()
        return [
            Draw(id, logprob, logprob if math.isnan(logprob) else 0.0)
            for id, logprob in zip(_largest(logits_BV), most, strict=True)
        ]
    # On a CPU softmax takes half the time of exp alone: its own one is exact to 1e-6, not to 1e-7.
    probs_BV = torch.softmax(logits_BV, -1)
    most = probs_BV.amax(-1).tolist()
    if any(map(math.isnan, most)):
        return _with_nan(logits_BV, [not math.isnan(prob) for prob in most], rows)
    ids, sampling = _choose(logits_BV, probs_BV, rows)
    index_B1 = torch.tensor(ids, device=logits_BV.device)[:, None]
    below = (logits_BV.gather(1, index_B1)[:, 0] - logits_BV.amax(-1)).tolist()
    raw = [less + math.log(prob) for less, prob in zip(below, most, strict=True)]
    return [
        Draw(id, logprob, logprob if own is None else own)
        for id, logprob, own in zip(ids, raw, sampling, strict=True)
    ]


def _with_nan(logits_BV: torch.Tensor, sound: list[bool], rows: Sequence[Row]) -> list[Draw]:
    """The sound rows drawn as ever; NaN for those whose logits are no numbers."""
    kept = [i for i, good in enumerate(sound) if good]
    drawn = dict(zip(kept, draw(logits_BV[kept], [rows[i] for i in kept]), strict=True)) if kept else {}
    return [drawn.get(i, Draw(0, math.nan, math.nan)) for i in range(len(rows))]


def _choose(
    logits_BV: torch.Tensor, probs_BV: torch.Tensor, rows: Sequence[Row]
) -> tuple[list[int], list[float | None]]:
    """Ids, and log-probabilities of the distribution drawn from where that is not the raw one."""
    ids: list[int] = [0] * len(rows)
    sampling: list[float | None] = [None] * len(rows)
    greedy, neutral = [], []
    for i, row in enumerate(rows):
        if row.params.temperature == 0:
            ids[i], sampling[i] = row.forced or 0, 0.0
            if row.forced is None:
                greedy.append(i)
        elif _neutral(row):
            neutral.append(i)
        else:
            ids[i], sampling[i] = _shaped(logits_BV[i], row)
    if greedy:
        _put(ids, greedy, _largest(_some(logits_BV, greedy)))
    if neutral:
        _put(ids, neutral, _invert(_some(probs_BV, neutral), [rows[i] for i in neutral]))
    return ids, sampling


def _some(all_BV: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return all_BV if len(rows) == len(all_BV) else all_BV[rows]


def _put(ids: list[int], rows: list[int], chosen: list[int]) -> None:
    for i, id in zip(rows, chosen, strict=True):
        ids[i] = id


def _largest(logits_BV: torch.Tensor) -> list[int]:
    # numpy's argmax takes a tenth of the time of torch's on a CPU.
    on_cpu = logits_BV.device.type == "cpu"
    ids: list[int] = (logits_BV.numpy() if on_cpu else logits_BV).argmax(-1).tolist()
    return ids


def _neutral(row: Row) -> bool:
    params = row.params
    return (
        params.temperature == 1
        and row.forced is None
        and params.top_p == 1
        and params.top_k <= 0
        and params.min_p == 0
    )


def _shaped(logits_V: torch.Tensor, row: Row) -> tuple[int, float]:
    """Draw with temperature and cuts; the order is vLLM's: min_p, top_k, top_p."""
    temperature = min(max(row.params.temperature, COLD), HOT)
    probs_V = torch.softmax((logits_V - logits_V.amax()) / temperature, -1)
    weights_V = probs_V / probs_V.amax()
    floor = threshold(weights_V, row.params)
    weights_V = torch.where(weights_V >= floor, weights_V, 0.0)
    id = _invert(weights_V[None], [row])[0] if row.forced is None else row.forced
    return id, float(weights_V[id].double().log() - weights_V.sum(dtype=torch.float64).log())


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


def _invert(weights_BV: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """For each row an id, drawn by weight; never one of weight 0.

    From the whole down to one id, each time one of `BRANCHES` parts by noise of its own. Were one number
    to choose among 49k ids at once, rounding would move thousands of boundaries between them: of SmolLM2's
    tokens 1 in 400 was another one alone than in a batch. This way it is less than 1 in 20,000.
    """
    noise = [uniforms(row.params.seed, row.position) for row in rows]
    noise_BL = torch.tensor(noise, dtype=torch.float64).to(weights_BV.device)
    part_B1 = noise_BL.new_zeros((len(rows), 1), dtype=torch.int64)
    branches = torch.arange(BRANCHES, device=weights_BV.device)
    for level, sums_BN in enumerate(_sums(weights_BV)):
        index_BK = part_B1 * BRANCHES + branches
        ends_BK = sums_BN.gather(1, index_BK).double().cumsum(-1)
        total_B1 = ends_BK[:, -1:]
        # Below the total also where the product rounds up to it: the search must end at a part with weight.
        target_B1 = torch.minimum(noise_BL[:, level : level + 1] * total_B1, total_B1 * (1 - 2**-52))
        part_B1 = index_BK.gather(1, torch.searchsorted(ends_BK, target_B1, right=True))
    ids: list[int] = part_B1[:, 0].tolist()
    return ids


def _sums(weights_BV: torch.Tensor) -> list[torch.Tensor]:
    """Of the whole's parts, of their parts, and so on to the ids: multiples of `BRANCHES` of them."""
    sums = [_padded(weights_BV)]
    while sums[0].shape[1] > BRANCHES:
        sums.insert(0, _padded(sums[0].view(len(weights_BV), -1, BRANCHES).sum(-1)))
    return sums


def _padded(sums_BN: torch.Tensor) -> torch.Tensor:
    missing = -sums_BN.shape[1] % BRANCHES
    return F.pad(sums_BN, (0, missing)) if missing else sums_BN


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
