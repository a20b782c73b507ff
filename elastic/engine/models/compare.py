"""A loaded model's packed forward pass against its own plain one, on a few tokens.

Two sequences are computed together, in chunks and token by token, as the engine computes them; the
logits have to be those that the model gives each sequence alone. Whatever a model does that the
engine's attention does not know of, and no name in its configuration tells, shows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from gyre.elastic.engine.compute.attention import Ragged
from gyre.elastic.engine.compute.forward import probe_shape
from gyre.elastic.engine.compute.kv import SequenceKV
from gyre.elastic.engine.compute.singles import Chunk
from gyre.elastic.engine.models.check import ELSEWHERE, vocab_size
from gyre.proxy.errors import EngineError

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest part of the logits that may differ (relative L2 norm, mean taken off).

Rounding makes 1e-5 and 0.02 in a network of 40 layers; attention of another kind mostly more than 0.3.
"""
_WINDOW = 4
"""Sliding windows are narrowed to this for the comparison, so that a few tokens reach beyond them."""
_STEPS = ((5, 4), (1, 3), (3, 1), (1, 1), (2, 4))
"""New tokens of the first and of the second sequence in each step."""


@torch.inference_mode()
def check_logits(model: PreTrainedModel) -> None:
    """Leaves the engine's attention set. EngineError when the two differ, or when one cannot run."""
    try:
        with narrow_windows(model):
            difference = _difference(model)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise EngineError(
            f"gyre engine cannot serve `{model.config.model_type}` models: their attention is not called as"
            f" the engine's is ({first})",
            ELSEWHERE,
        ) from error
    if not difference <= TOLERANCE[model.dtype]:  # also when it is no number
        raise EngineError(
            f"gyre engine computes other logits than transformers for `{model.config.model_type}`"
            f" (relative difference {difference:.2g})",
            ELSEWHERE,
        )


def _difference(model: PreTrainedModel) -> float:
    lengths = [sum(step[which] for step in _STEPS) for which in (0, 1)]
    # Any ids do; these are spread over the vocabulary.
    ids = [
        [(7 + 7919 * (n + 31 * which)) % vocab_size(model) for n in range(lengths[which])] for which in (0, 1)
    ]
    expected = [_plain(model, row) for row in ids]
    given = _packed(model, ids)
    wanted_NV, got_NV = torch.cat(expected).float(), torch.cat(given).float()
    wanted_NV -= wanted_NV.mean(-1, keepdim=True)
    got_NV -= got_NV.mean(-1, keepdim=True)
    return float((got_NV - wanted_NV).norm() / wanted_NV.norm())


def _plain(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """(N, V) with the model's own attention."""
    out: Any = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    logits: torch.Tensor = out.logits[0]
    return logits


def _packed(model: PreTrainedModel, ids: list[list[int]]) -> list[torch.Tensor]:
    """(N, V) of each sequence, computed in `_STEPS`."""
    shape = probe_shape(model)
    kvs = [SequenceKV(shape, len(row)) for row in ids]
    parts: list[list[torch.Tensor]] = [[], []]
    for step in _STEPS:
        chunks = [(which, Chunk(kvs[which], kvs[which].length, step[which])) for which in (0, 1)]
        chunks.sort(key=lambda pair: pair[1].count > 1)
        rows = iter(_ragged(model, chunks, ids))
        for which, chunk in chunks:
            parts[which] += [next(rows) for _ in range(chunk.count)]
            chunk.kv.advance(chunk.count, "0")
    return [torch.stack(part) for part in parts]


def _ragged(model: PreTrainedModel, chunks: list[tuple[int, Chunk]], ids: list[list[int]]) -> torch.Tensor:
    """(T, V) of one packed step."""
    spans = [(which, chunk.position, chunk.position + chunk.count) for which, chunk in chunks]
    tokens = [id_ for which, start, end in spans for id_ in ids[which][start:end]]
    positions = [position for _, start, end in spans for position in range(start, end)]
    single = [chunk for _, chunk in chunks if chunk.count == 1]
    out: Any = model(
        input_ids=torch.tensor([tokens], device=model.device),
        position_ids=torch.tensor([positions], device=model.device),
        use_cache=False,
        logits_to_keep=torch.arange(len(tokens), device=model.device),
        ragged=Ragged(single, [chunk for _, chunk in chunks if chunk.count > 1]),
    )
    logits: torch.Tensor = out.logits[0]
    return logits


@contextmanager
def narrow_windows(model: PreTrainedModel) -> Iterator[None]:
    """Masks are made from the configuration, attention functions read the layer: both are changed."""
    holders: list[Any] = [model.config.get_text_config(), *model.modules()]
    windows = [
        (holder, vars(holder)["sliding_window"]) for holder in holders if vars(holder).get("sliding_window")
    ]
    for holder, _ in windows:
        holder.sliding_window = _WINDOW
    try:
        yield
    finally:
        for holder, window in windows:
            holder.sliding_window = window
