"""How much memory training will take, from the sizes of a model alone.

    weights       4 W                       fp32; in bf16 another 2 W: the copies that are computed with
    gradients     4 T
    optimizer     8 T                       two moments of AdamW
    reference     4 W                       with `kl`
    activations   N (L (16 D + b (2 D + 4 Q + 4 K + 4 I)) + 12 D)
    keys          16 P L K                  `dfs` only: K and V of the longest path, and their gradients
    head          3 min(4 V R, max(4 D V, 64 MiB))   logits of a chunk, their probabilities and gradients

in bytes, of W parameters, T of them trained; D hidden, L layers, Q and K widths of all query and key heads,
I of the feed-forward layer (of a mixture of experts those that a token goes through), V vocabulary, b = 4 or
2 in bf16; R targets, P tokens of the longest path. A layer keeps for its backward pass the norms' inputs and
what they are multiplied with, queries, keys, values and the attention's output, and the feed-forward layer's
gate and products; a model without norms of queries and keys has a little less. N tokens are computed at once:
a piece has the token budget at most, or a single path, where `dfs` does not recompute, and no more than there
are.

torch's own workspace, fragmentation and what Python and the libraries take is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from gyre.elastic.engine.models.quiet import quietly
from gyre.trainer.pack.work import Work
from gyre.trainer.passes.head import CHUNK_BYTES
from gyre.trainer.settings import Dtype, PassName, TrainSettings
from gyre.trainer.update.optimizer import select


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    parameters: int
    trained: int
    hidden: int
    layers: int
    queries: int
    """Heads times their width."""
    keys: int
    feed_forward: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    activations: int
    keys: int
    head: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """All of it but the numbers."""
    auto: Any = AutoModelForCausalLM
    with quietly(), torch.device("meta"):
        model: PreTrainedModel = auto.from_config(config)
    return model


def sizes(model: PreTrainedModel, train: Sequence[str], freeze: Sequence[str]) -> Sizes:
    """Raises TrainError for patterns that match no parameter."""
    own = dict(model.named_parameters())
    chosen = select(own, train, freeze)
    text = model.config.get_text_config().to_dict()
    heads = text["num_attention_heads"]
    width = text.get("head_dim") or text["hidden_size"] // heads
    experts = text.get("num_experts_per_tok")
    inner = text.get("intermediate_size") or 4 * text["hidden_size"]
    if experts:
        inner = experts * (text.get("moe_intermediate_size") or inner)
    return Sizes(
        parameters=sum(parameter.numel() for parameter in own.values()),
        trained=sum(own[name].numel() for name in chosen),
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        queries=heads * width,
        keys=(text.get("num_key_value_heads") or heads) * width,
        feed_forward=inner,
        vocabulary=text["vocab_size"],
    )


def estimate(sizes: Sizes, settings: TrainSettings, longest: Work) -> Memory:
    """`longest` is the largest update's work."""
    half = settings.dtype is Dtype.BF16
    dfs = settings.tree_pass in (PassName.DFS, PassName.AUTO)
    path, budget = longest.longest_path, settings.token_budget
    recompute = dfs and (path > budget if settings.recompute is None else settings.recompute)
    tokens = min(longest.tokens, budget if recompute else max(budget, path))
    attention = 4 * sizes.queries + 4 * sizes.keys
    kept = 16 * sizes.hidden + (2 if half else 4) * (2 * sizes.hidden + attention + 4 * sizes.feed_forward)
    chunk = max(4 * sizes.hidden * sizes.vocabulary, CHUNK_BYTES)
    return Memory(
        weights=(6 if half else 4) * sizes.parameters,
        gradients=4 * sizes.trained,
        optimizer=8 * sizes.trained,
        reference=4 * sizes.parameters if settings.loss.kl else 0,
        activations=tokens * (sizes.layers * kept + 12 * sizes.hidden),
        keys=16 * path * sizes.layers * sizes.keys if dfs else 0,
        head=3 * min(4 * sizes.vocabulary * longest.targets, chunk),
    )
