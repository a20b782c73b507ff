"""The engine, and two ways of transformers to generate: each makes as many tokens of a load."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.engine.loads import Load, Prompts
from benchmarks.engine.report import CONTINUOUS, GENERATE, OWN
from gyre.elastic.engine.compute.forward import step_tokens
from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import Collected, GenerationRequest, Listener, SamplingParams

CTX = 8192
PAGE = 256
BATCH_TOKENS = 256
"""Of continuous batching: of 256, 512, 2,048 and 8,192 the fastest here."""


class Side(Protocol):
    name: str

    def generate(self, prompts: Prompts, load: Load) -> list[list[int]]:
        """`load.output` tokens for each prompt; none of them ends early."""

    def forget(self) -> None:
        """Whatever is kept of earlier loads."""


class Own:
    name = OWN

    def __init__(self, loaded: LoadedModel, digest: str = "") -> None:
        limits = EngineLimits(ctx=CTX, step_tokens=step_tokens(loaded.model))
        self.core = Core(loaded, limits, digest=digest)
        self._numbers = count()

    def generate(self, prompts: Prompts, load: Load) -> list[list[int]]:
        heard = [Collected() for _ in prompts]
        for prompt, listener in zip(prompts, heard, strict=True):
            self.ask(prompt, load, listener)
        while self.core.step():
            pass
        return [[token.id for token in one.tokens] for one in heard]

    def ask(self, prompt: Sequence[int], load: Load, listener: Listener) -> None:
        self.core.add([(self.request(prompt, load), listener)])

    def request(self, prompt: Sequence[int], load: Load) -> GenerationRequest:
        number = next(self._numbers)
        sampling = SamplingParams(seed=number, temperature=load.temperature)
        return GenerationRequest(
            request_id=f"{number}", prompt_ids=prompt, max_tokens=load.output, sampling=sampling
        )

    def forget(self) -> None:
        self.core.memory.clear()


def reference(loaded: LoadedModel) -> PreTrainedModel:
    """The same weights in memory of their own, with torch's attention; no token ends the output."""
    model = copy.deepcopy(loaded.model)
    model.set_attn_implementation("sdpa")
    model.generation_config = GenerationConfig()
    return model


class Batched:
    """`generate` with all prompts as one batch: they have one length, so nothing is padded."""

    name = GENERATE

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model

    def generate(self, prompts: Prompts, load: Load) -> list[list[int]]:
        ids_BP = torch.tensor(prompts)
        with torch.inference_mode():
            out_BL = self._model.generate(
                ids_BP, attention_mask=torch.ones_like(ids_BP), generation_config=_config(load)
            )
        ids: list[list[int]] = out_BL[:, load.prompt :].tolist()
        return ids

    def forget(self) -> None:
        pass


class Continuous:
    """transformers' continuous batching, with memory for all that is open."""

    name = CONTINUOUS

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model

    def generate(self, prompts: Prompts, load: Load) -> list[list[int]]:
        pages = -(-(load.prompt + load.output) // PAGE) + 1
        config = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=load.open * pages,
            max_batch_tokens=BATCH_TOKENS,
            # The prompts of a load are the same in every round: none may be found in a cache.
            allow_block_sharing=False,
        )
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
        outputs = self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=_config(load),
            continuous_batching_config=config,
        )
        found = {tuple(one.prompt_ids): one.generated_tokens for one in outputs.values()}
        return [found[tuple(prompt)] for prompt in prompts]

    def forget(self) -> None:
        pass


def _config(load: Load) -> GenerationConfig:
    how: dict[str, Any] = {"do_sample": False}
    if load.temperature:
        how = {"do_sample": True, "temperature": load.temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(max_new_tokens=load.output, pad_token_id=0, **how)
