"""What transformers itself answers, and how far two greedy texts can be compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig, PreTrainedModel

from gyre.elastic.engine.compute.noise import uniforms
from gyre.elastic.engine.request import SamplingParams, Span
from tests.engine.core.build import network, plain_logits

TIE = 1e-4
"""Two best logits nearer than this may change places by rounding."""
NEAR = 1e-5
"""The same for the noise and the end of an id's share."""


@dataclass(frozen=True)
class Greedy:
    """A greedy text, up to the first step that rounding may decide."""

    ids: list[int]
    """All of it."""
    sure: int
    """How many of the first ids no rounding can change."""

    def require(self, other: Sequence[int]) -> None:
        assert len(other) == len(self.ids)
        assert list(other[: self.sure]) == self.ids[: self.sure]


def generated(model: Any, prompt: Sequence[int], max_tokens: int) -> Greedy:
    """By `generate`, one prompt at a time."""
    out: Any = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        generation_config=GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=-1,  # whatever the model's own is
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        ),
    )
    best = torch.stack(out.logits)[:, 0].topk(2).values
    near = ((best[:, 0] - best[:, 1]) < TIE).nonzero()
    return Greedy(out.sequences[0, len(prompt) :].tolist(), int(near[0]) if len(near) else max_tokens)


def batched(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """By transformers' continuous batching."""
    config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    out: Any = model.generate_batch(
        [list(prompt) for prompt in prompts],
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, block_size=32, max_batch_tokens=256
        ),
        progress_bar=False,
    )
    by_prompt = {tuple(one.prompt_ids): one.generated_tokens for one in out.values()}
    return [by_prompt[tuple(prompt)] for prompt in prompts]


def logprobs_after(model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
    """(len(output), V): the raw distribution before each output token, by one fresh forward pass."""
    logits = plain_logits(model, [*prompt, *output])
    return torch.log_softmax(logits[len(prompt) - 1 : -1], -1)


def shaped(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, bool]:
    """The distribution to sample from in plain fp64, by sorting; and whether rounding may change the cuts.

    vLLM's order: temperature, min_p, top_k, top_p; what ties with the last one kept stays in.
    """
    weights, order = torch.softmax(logits.double() / params.temperature, -1).sort(descending=True)
    kept, sure = weights >= params.min_p * weights[0], True
    sure &= not bool(((weights / weights[0] - params.min_p).abs() < 1e-5).any()) or params.min_p == 0
    if 0 < params.top_k < len(weights):
        kept &= weights >= weights[params.top_k - 1]
        sure &= bool(weights[params.top_k - 1] - weights[params.top_k] > 1e-6 * weights[0])
    if params.top_p < 1:
        share = (weights * kept).cumsum(0) / (weights * kept).sum()
        last = int((share >= params.top_p).to(torch.uint8).argmax())
        kept &= weights >= weights[last]
        sure &= not bool(((share - params.top_p).abs() < 1e-5).any())
    weights = weights * kept
    result = torch.zeros_like(weights)
    result[order] = weights / weights.sum()
    return result, sure


def drawn(chances_V: torch.Tensor, seed: int, position: int) -> tuple[int, float]:
    """The id that is drawn, by plain loops; and how near the noise came to the end of a share.

    One of 64 parts after the other: of all ids, of 4,096, of 64; the widest ones that there are first.
    """
    levels = [chances_V.double().tolist()]
    while len(levels[0]) > 64:
        below = levels[0]
        levels.insert(0, [math.fsum(below[at : at + 64]) for at in range(0, len(below), 64)])
    chosen, nearest = 0, 1.0
    for parts, number in zip(levels, uniforms(seed, position), strict=False):
        parts = parts[chosen * 64 : (chosen + 1) * 64]
        ends = [end / sum(parts) for end in itertools.accumulate(parts)]
        nearest = min([nearest, *(abs(number - end) for end in ends[:-1])])
        chosen = chosen * 64 + next(at for at, end in enumerate(ends) if end > number)
    return chosen, nearest


def is_sure(row_V: torch.Tensor, params: SamplingParams, position: int) -> bool:
    """Whether what is drawn from this row does not hang on the last digits of its logits."""
    if params.temperature == 0:
        best = row_V.topk(2).values
        return bool(best[0] - best[1] > TIE)
    chances_V, sure = shaped(row_V, params)
    return sure and drawn(chances_V, params.seed, position)[1] > NEAR


class Replay:
    """The rows a policy gives whose weights changed between spans while keys and values stayed."""

    def __init__(self, versions: Mapping[str, int], kind: str = "qwen3") -> None:
        self._networks = {version: network(kind, seed) for version, seed in versions.items()}

    @torch.inference_mode()
    def rows(self, ids: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """(N, V) logits of the positions that `spans` cover, by transformers with its own cache."""
        models: list[Any] = [self._networks[span.version] for span in spans]
        cache, rows = DynamicCache(config=models[0].config), []
        for model, span in zip(models, spans, strict=True):
            part = torch.tensor([ids[span.start : span.end]])
            places = torch.arange(span.start, span.end)[None]
            rows.append(model(part, position_ids=places, cache=cache).logits[0])
        return torch.cat(rows)
