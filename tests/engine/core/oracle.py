"""What transformers itself answers, and how far two greedy texts can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig, PreTrainedModel

from gyre.elastic.engine.request import Span
from tests.engine.core.build import network, plain_logits

TIE = 1e-4
"""Two best logits nearer than this may change places by rounding."""


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
