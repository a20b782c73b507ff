"""A real model: what the tiny ones show holds at 30 layers and 49,152 ids as well."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from transformers import PreTrainedModel

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import GenerationRequest
from tests.engine.core import oracle
from tests.engine.core.build import Heard, add, add_choices, answer, ask, plain_logits, run, seeded, steps
from tests.engine.core.oracle import shaped
from tests.engine.core.test_sampling import require_fit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TOKENS = 12
TOPICS = [
    "rivers",
    "the moon",
    "bread",
    "prime numbers",
    "a lighthouse",
    "chess",
    "rain",
    "copper",
    "owls",
    "Rome",
]
FORMS = [
    "Write one sentence about {}.",
    "List three facts about {}, and say of each how sure you are and why one might doubt it.",
    "{}?",
    "def {0}():\n    '''All about {0}.'''\n    return",
    "Translate into French: I have read a long book about {} and liked the second half more than the first.",
]


@functools.cache
def _model() -> LoadedModel:
    return load_model("smollm2")


@contextmanager
def _plain() -> Iterator[PreTrainedModel]:
    """The model with transformers' own attention; a `Core` made later sets the engine's again."""
    network = _model().model
    network.set_attn_implementation("sdpa")
    yield network


def _core(**limits: int) -> Core:
    return Core(_model(), EngineLimits(ctx=2048, **limits))


@functools.cache
def _requests() -> list[GenerationRequest]:
    texts = [form.format(topic) for form in FORMS for topic in TOPICS]
    prompts = [_model().tokenizer.encode(text) for text in texts]
    return [ask(prompt, TOKENS, top_logprobs=1) for prompt in prompts]


@functools.cache
def _expected() -> list[oracle.Greedy]:
    with _plain() as network:
        return [oracle.generated(network, request.prompt_ids, TOKENS) for request in _requests()]


def _require_right(heard: list[Heard]) -> None:
    for expected, one in zip(_expected(), heard, strict=True):
        expected.require(one.ids)
    assert sum(one.sure for one in _expected()) > 0.9 * 50 * TOKENS
    with _plain() as network:
        for request, one in list(zip(_requests(), heard, strict=True))[::5]:
            rows = oracle.logprobs_after(network, request.prompt_ids, one.ids)
            fresh = rows[range(TOKENS), one.ids].tolist()
            assert one.logprobs == pytest.approx(fresh, abs=1e-4)


def test_fifty_greedy_answers_are_those_of_generate_alone() -> None:
    _expected()
    core = _core()
    _require_right([answer(core, request) for request in _requests()])


def test_fifty_greedy_answers_are_those_of_generate_among_others() -> None:
    _expected()
    core, chance, heard, left = _core(step_tokens=40), random.Random(1), list[Heard](), list(_requests())
    while left:
        count = chance.randint(1, 6)
        heard += add(core, *left[:count])
        left = left[count:]
        steps(core, chance.randint(0, 4))
    run(core)
    _require_right(heard)


def test_seeded_answers_repeat_and_tell_the_shaped_probability() -> None:
    how = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01}
    requests = [
        ask(request.prompt_ids, TOKENS, sampling=seeded(n, **how))
        for n, request in enumerate(_requests()[:6])
    ]
    core = _core()
    together = add(core, *requests)
    run(core)
    alone = [answer(_core(), request) for request in requests]
    assert [one.ids for one in together] == [one.ids for one in alone]
    judged = 0
    with _plain() as network:
        for request, one in zip(requests, alone, strict=True):
            prompt = list(request.prompt_ids)
            rows = plain_logits(network, [*prompt, *one.ids])[len(prompt) - 1 : -1]
            for token, row in zip(one.tokens, rows, strict=True):
                chances, sure = shaped(row, request.sampling)
                if sure:
                    judged += 1
                    expected = float(chances[token.id].log())
                    assert token.sampling_logprob == pytest.approx(expected, abs=1e-4)
    assert judged > 0


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_what_is_drawn_fits_the_models_distribution(top_p: float) -> None:
    prompt = _model().tokenizer.encode("The best thing about")
    core = _core(slots=400, queue=400)
    heard = add_choices(core, *[ask(prompt, 1, sampling=seeded(seed, top_p=top_p)) for seed in range(400)])
    run(core)
    counts = np.zeros(_model().vocab_size)
    np.add.at(counts, [one.ids[0] for one in heard], 1)
    with _plain() as network:
        chances, _ = shaped(plain_logits(network, prompt)[-1], seeded(0, top_p=top_p))
    require_fit(counts, chances.numpy())


def test_a_conversation_goes_on_from_what_is_kept() -> None:
    core = _core()
    prompt = list(_requests()[45].prompt_ids)
    first = answer(core, ask(prompt, TOKENS))
    longer = ask([*prompt, *first.ids, *_model().tokenizer.encode(" And then?")], TOKENS)
    second = answer(core, longer)
    assert second.finish is not None
    assert second.finish.cached_tokens == len(prompt) + TOKENS - 1
    assert second.ids == answer(_core(), longer).ids
