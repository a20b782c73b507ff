"""One forward pass over a ragged batch. Knows the model, nothing of requests' fates."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from gyre.elastic.engine.compute.attention import NAME, Ragged, ragged_attention
from gyre.elastic.engine.compute.kv import KVShape
from gyre.elastic.engine.compute.sequence import Sequence
from gyre.elastic.engine.compute.singles import Chunk, Gatherer
from gyre.proxy.errors import EngineError


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of a sequence to compute, the next ones."""

    sequence: Sequence
    count: int

    @property
    def completes(self) -> bool:
        """Whether its next token can be drawn afterwards."""
        return self.count == self.sequence.pending

    @property
    def prompt_rows(self) -> int:
        """How many of its rows predict a prompt token whose log-probability is wanted."""
        if self.sequence.request.prompt_logprobs is None or self.sequence.told:
            return 0
        return max(0, min(self.count, self.sequence.prompt_length - 1 - self.sequence.computed))


@dataclass(frozen=True, slots=True)
class Logits:
    next_BV: torch.Tensor
    """A row for each work that completes, in order."""
    prompt_PV: torch.Tensor | None
    """`prompt_rows` rows for each work, in order."""


def ordered(batch: Seq[Work]) -> list[Work]:
    """Single tokens first, as attention wants them."""
    return sorted(batch, key=lambda work: work.count > 1)


def forward(model: PreTrainedModel, batch: Seq[Work], gatherer: Gatherer | None = None) -> Logits:
    """Compute `ordered` work; writes keys and values behind each sequence's `computed` tokens.

    `gatherer` is what stays from one pass to the next.

    Safe to repeat: nothing counts as computed until the caller advances the KV.
    """
    ids: list[int] = []
    positions: list[int] = []
    last: list[int] = []
    prompt: list[int] = []
    chunks = []
    for work in batch:
        start, sequence = work.sequence.computed, work.sequence
        assert sequence.kv is not None
        row = len(ids)
        ids += sequence.ids[start : start + work.count]
        positions += range(start, start + work.count)
        chunks.append(Chunk(sequence.kv, start, work.count))
        prompt += range(row, row + work.prompt_rows)
        if work.completes:
            last.append(len(ids) - 1)
    single = sum(chunk.count == 1 for chunk in chunks)
    gathered = gatherer.gather(chunks[:single]) if gatherer else None
    ragged = Ragged(chunks[:single], chunks[single:], gathered)
    logits_RV = _run(model, ids, positions, [*last, *prompt], ragged)
    return Logits(logits_RV[: len(last)], logits_RV[len(last) :] if prompt else None)


def _run(
    model: PreTrainedModel, ids: list[int], positions: list[int], rows: list[int], ragged: Any
) -> torch.Tensor:
    """Logits of `rows` in the model's dtype, (R, V)."""
    device = model.device
    out = model(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        use_cache=False,
        # The head is computed for these rows only: at a vocabulary of 49k most of a prompt's work.
        logits_to_keep=0
        if rows == [*range(len(ids))]
        else torch.tensor(rows, dtype=torch.long, device=device),
        ragged=ragged,
    )
    logits: torch.Tensor = out.logits[0]
    return logits


STEP_FLOP = 70e9
"""What a core does in about half a second: so long may a prompt hold up the answers beside it."""
STEP_TOKENS = (256, 1024)
"""Fewer would make prompts slow; more would hold up answers at long contexts, where attention is the work."""


def step_tokens(model: PreTrainedModel) -> int:
    """Prompt tokens to compute in a step beside running answers, by the size of the model."""
    tokens = STEP_FLOP / (2 * sum(parameter.numel() for parameter in model.parameters()))
    return int(min(max(tokens, STEP_TOKENS[0]), STEP_TOKENS[1]))


_PROBE = "gyre_probe"


@torch.inference_mode()
def probe_shape(model: PreTrainedModel) -> KVShape:
    """What the model's keys and values are like, by looking at one token's.

    Raises:
        EngineError: the layers differ, or keys and values do.
    """
    seen: dict[int, tuple[int, int, int, torch.dtype]] = {}

    def look(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> Any:
        seen[module.layer_idx] = (key.shape[1], key.shape[3], value.shape[3], key.dtype)
        heads = query.shape[1] // value.shape[1]
        return value.repeat_interleave(heads, 1).transpose(1, 2), None

    AttentionInterface.register(_PROBE, look)
    model.set_attn_implementation(_PROBE)
    _run(model, [0], [0], [0], None)
    AttentionInterface.register(NAME, ragged_attention)
    model.set_attn_implementation(NAME)
    if sorted(seen) != list(range(len(seen))) or len(set(seen.values())) != 1:
        raise EngineError("the model's attention layers differ in their keys and values", HINT)
    heads, key_dim, value_dim, dtype = seen[0]
    if key_dim != value_dim:
        raise EngineError("the model's keys and values differ in size", HINT)
    return KVShape(layers=len(seen), heads=heads, head_dim=key_dim, dtype=dtype, device=model.device)


HINT = "serve it with vLLM; gyre's proxy records that as well"
