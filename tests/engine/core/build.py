"""Tiny random models of several kinds, requests, and the ways the tests of the core run them."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import Collected, GenerationRequest, SamplingParams
from gyre.elastic.engine.weights.staged import StagedWeights

VOCAB = 199
"""No multiple of the sampler's block."""
WINDOW = 12
"""Of the sliding models: far less than most prompts."""
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.4,  # with the usual 0.02 all logits are nearly equal
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def _qwen3() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    return Qwen3ForCausalLM, Qwen3Config(**COMMON, num_hidden_layers=2, head_dim=8)


def _llama_tied() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    return LlamaForCausalLM, LlamaConfig(**COMMON, num_hidden_layers=2, tie_word_embeddings=True)


def _mistral_sliding() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    return MistralForCausalLM, MistralConfig(**COMMON, num_hidden_layers=2, sliding_window=WINDOW)


def _qwen3_mixed() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    config = Qwen3Config(
        **COMMON,
        num_hidden_layers=3,
        head_dim=8,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
        layer_types=MIXED,
    )
    return Qwen3ForCausalLM, config


def _gemma3() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    config = Gemma3TextConfig(
        **COMMON,
        num_hidden_layers=3,
        head_dim=8,
        query_pre_attn_scalar=8,
        tie_word_embeddings=False,
        sliding_window=WINDOW,
        layer_types=MIXED,
    )
    return Gemma3ForCausalLM, config


def _qwen3_moe() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    config = Qwen3MoeConfig(
        **COMMON,
        num_hidden_layers=2,
        moe_intermediate_size=24,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    return Qwen3MoeForCausalLM, config


_KINDS = {
    "qwen3": _qwen3,
    "llama tied": _llama_tied,
    "mistral sliding": _mistral_sliding,
    "qwen3 mixed": _qwen3_mixed,
    "gemma3": _gemma3,
    "qwen3 moe": _qwen3_moe,
}
KINDS = tuple(_KINDS)


@functools.cache
def network(kind: str = "qwen3", seed: int = 0) -> PreTrainedModel:
    """One of `KINDS`, random, fp32, with transformers' own attention. Shared: a Core takes `fresh`."""
    made: Any
    made, config = _KINDS[kind]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = made(config).eval()
    model.requires_grad_(False)
    return model


def fresh(kind: str = "qwen3", seed: int = 0) -> PreTrainedModel:
    """The same weights in memory of its own."""
    source = network(kind, seed)
    made: Any = type(source)
    model: PreTrainedModel = made(copy.deepcopy(source.config)).eval()
    model.load_state_dict(source.state_dict())
    model.requires_grad_(False)
    return model


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    """The core never asks it anything."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0})))


def loaded(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel(
        name="model",
        model=model,
        tokenizer=_tokenizer(),
        chat_template=None,
        stop_ids=frozenset(),
        vocab_size=model.config.vocab_size,
        max_positions=model.config.max_position_embeddings,
    )


def token_bytes(kind: str = "qwen3") -> int:
    """Of a token's keys and values in fp32, by layer for two heads of 8."""
    layers: int = network(kind).config.num_hidden_layers
    return layers * 2 * 2 * 8 * 4


def core_of(
    kind: str = "qwen3",
    *,
    model: PreTrainedModel | None = None,
    seed: int = 0,
    version: str = "1",
    kv_tokens: int | None = None,
    **limits: Any,
) -> Core:
    """`kv_tokens` bounds the memory, in tokens."""
    if kv_tokens is not None:
        limits["kv_bytes"] = kv_tokens * token_bytes(kind)
    limits.setdefault("ctx", 4096)
    return Core(
        loaded(model or fresh(kind, seed)), EngineLimits(**limits), version=version, digest=f"digest {seed}"
    )


_NAMES = itertools.count()
GREEDY = SamplingParams(seed=0, temperature=0)


def ask(prompt: Sequence[int], max_tokens: int = 8, **rest: Any) -> GenerationRequest:
    """Greedy, under a name of its own, unless told otherwise."""
    rest.setdefault("request_id", f"r{next(_NAMES)}")
    rest.setdefault("sampling", GREEDY)
    return GenerationRequest(prompt_ids=prompt, max_tokens=max_tokens, **rest)


def seeded(seed: int, **rest: Any) -> SamplingParams:
    return SamplingParams(seed=seed, **rest)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()
    return ids


@dataclass
class Heard(Collected):
    """Counts what must come once; `stop_after` is the server's stop string."""

    starts: int = 0
    ends: int = 0
    stop_after: int | None = None

    def started(self, started: Any) -> None:
        assert not self.tokens
        assert not self.ends
        self.starts += 1
        Collected.started(self, started)

    def token(self, token: Any) -> bool:
        assert self.starts == 1
        assert not self.ends
        Collected.token(self, token)
        return len(self.tokens) == self.stop_after

    def finished(self, finish: Any) -> None:
        self.ends += 1
        Collected.finished(self, finish)

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def logprobs(self) -> list[float]:
        return [token.logprob for token in self.tokens]

    @property
    def reason(self) -> str:
        assert self.finish is not None
        assert self.ends == 1
        return str(self.finish.reason)


def add(core: Core, *requests: GenerationRequest) -> list[Heard]:
    """Each request a call of its own."""
    heard = [Heard() for _ in requests]
    for request, listener in zip(requests, heard, strict=True):
        core.add([(request, listener)])
    return heard


def add_choices(core: Core, *requests: GenerationRequest) -> list[Heard]:
    """The requests as choices of one call."""
    heard = [Heard() for _ in requests]
    core.add(list(zip(requests, heard, strict=True)))
    return heard


def run(core: Core, limit: int = 10_000) -> None:
    """Until there is nothing to do."""
    for _ in range(limit):
        if not core.step():
            return
    raise AssertionError(f"still busy after {limit} steps")


def steps(core: Core, count: int) -> None:
    for _ in range(count):
        core.step()


def answer(core: Core, request: GenerationRequest) -> Heard:
    (heard,) = add(core, request)
    run(core)
    return heard


def answers(core: Core, requests: Iterable[GenerationRequest]) -> list[Heard]:
    heard = add(core, *requests)
    run(core)
    return heard


def require_idle(core: Core) -> None:
    """Nothing is left of requests that have ended."""
    assert len(core.roster) == 0
    assert not core.running
    assert not core.roster.waiting
    assert core.stats.kv_bytes <= core.limits.kv_bytes


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """(N, V) by transformers alone: one fresh forward pass with its own attention."""
    logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits.float()


def staged(seed: int, kind: str = "qwen3") -> StagedWeights:
    """The weights of `network(kind, seed)`, as if read from a folder."""
    tensors = {name: tensor.clone() for name, tensor in network(kind, seed).state_dict().items()}
    return StagedWeights(folder=Path("nowhere"), digest=f"digest {seed}", tensors=tensors)
