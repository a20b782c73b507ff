"""In fp32 the engine answers what transformers answers, alone and among others."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch

from gyre.elastic.engine.request import GenerationRequest
from tests.engine.core import oracle
from tests.engine.core.build import (
    KINDS,
    Heard,
    add,
    answer,
    answers,
    ask,
    core_of,
    fresh,
    network,
    prompt_of,
    require_idle,
    run,
    seeded,
    steps,
)

TOKENS = 16
OTHERS = [kind for kind in KINDS if kind != "qwen3"]


def _prompts(count: int) -> list[list[int]]:
    """Of 1 to 70 tokens: shorter and longer than the windows and the store's blocks."""
    lengths = [1, 2, 15, 16, 17, 33, *random.Random(5).choices(range(1, 70), k=count)][:count]
    return [prompt_of(length, seed) for seed, length in enumerate(lengths)]


@functools.cache
def _expected(kind: str, count: int) -> list[oracle.Greedy]:
    return [oracle.generated(network(kind), prompt, TOKENS) for prompt in _prompts(count)]


def _among_others(kind: str, requests: list[GenerationRequest], **limits: Any) -> list[Heard]:
    """They arrive one to four at a time while earlier ones are under way."""
    core, chance, heard = core_of(kind, **limits), random.Random(3), []
    left = list(requests)
    while left:
        count = chance.randint(1, 4)
        heard += add(core, *left[:count])
        left = left[count:]
        steps(core, chance.randint(0, 6))
    run(core)
    require_idle(core)
    return heard


def test_fifty_greedy_answers_are_those_of_generate_alone() -> None:
    core = core_of()
    expected = _expected("qwen3", 50)
    assert sum(one.sure for one in expected) > 0.9 * 50 * TOKENS
    for prompt, one in zip(_prompts(50), expected, strict=True):
        one.require(answer(core, ask(prompt, TOKENS)).ids)


@pytest.mark.parametrize("limits", [{}, {"slots": 5, "step_tokens": 7}], ids=["wide", "narrow"])
def test_fifty_greedy_answers_are_those_of_generate_among_others(limits: dict[str, int]) -> None:
    requests = [ask(prompt, TOKENS) for prompt in _prompts(50)]
    for one, heard in zip(_expected("qwen3", 50), _among_others("qwen3", requests, **limits), strict=True):
        one.require(heard.ids)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_answer_as_generate_does(kind: str) -> None:
    requests = [ask(prompt, TOKENS) for prompt in _prompts(8)]
    alone = [answer(core_of(kind), request) for request in requests]
    among = _among_others(kind, requests, slots=5, step_tokens=11)
    for one, first, second in zip(_expected(kind, 8), alone, among, strict=True):
        one.require(first.ids)
        one.require(second.ids)


def test_transformers_continuous_batching_answers_the_same() -> None:
    prompts = _prompts(16)
    theirs = oracle.batched(network(), prompts, TOKENS)
    ours = answers(core_of(), [ask(prompt, TOKENS) for prompt in prompts])
    for expected, their, our in zip(_expected("qwen3", 16), theirs, ours, strict=True):
        expected.require(their)
        expected.require(our.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_a_fresh_forward_pass(kind: str) -> None:
    requests = [
        ask(prompt, TOKENS, top_logprobs=3, prompt_logprobs=2 if index % 2 else None)
        for index, prompt in enumerate(_prompts(10))
    ]
    for request, heard in zip(requests, _among_others(kind, requests, step_tokens=13), strict=True):
        _require_logprobs(kind, request, heard)


def _require_logprobs(kind: str, request: GenerationRequest, heard: Heard) -> None:
    fresh = oracle.logprobs_after(network(kind), request.prompt_ids, heard.ids)
    for token, row in zip(heard.tokens, fresh, strict=True):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-4)
        assert token.sampling_logprob == 0
        assert [one.logprob for one in token.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        assert [one.logprob for one in token.top] == pytest.approx(
            [float(row[one.id]) for one in token.top], abs=1e-4
        )
    assert heard.start is not None
    if request.prompt_logprobs is None:
        assert heard.start.prompt_logprobs is None
        return
    prompt = list(request.prompt_ids)
    fresh = oracle.logprobs_after(network(kind), prompt[:1], prompt[1:])
    assert heard.start.prompt_logprobs is not None
    assert [one.id for one in heard.start.prompt_logprobs] == prompt[1:]
    for told, row in zip(heard.start.prompt_logprobs, fresh, strict=True):
        assert told.logprob == pytest.approx(float(row[told.id]), abs=1e-4)
        assert told.rank == pytest.approx(1 + int((row > row[told.id]).sum()), abs=_near(row, told.id))
        assert [one.logprob for one in told.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


def _near(row: torch.Tensor, id_: int) -> int:
    """How many others rounding may put before or behind it."""
    return int(((row - row[id_]).abs() < oracle.TIE).sum()) - 1


def test_a_long_prompt_is_read_in_chunks_with_its_log_probabilities() -> None:
    request = ask(prompt_of(700), 3, prompt_logprobs=0, top_logprobs=3)
    core = core_of(step_tokens=100)
    _require_logprobs_long(request, answer(core, request))
    assert core.stats.computed_tokens == 702


def _require_logprobs_long(request: GenerationRequest, heard: Heard) -> None:
    prompt = list(request.prompt_ids)
    fresh = oracle.logprobs_after(network(), prompt[:1], prompt[1:])
    assert heard.start is not None
    told = heard.start.prompt_logprobs
    assert told is not None
    assert [one.id for one in told] == prompt[1:]
    assert [one.logprob for one in told] == pytest.approx(
        [float(row[id_]) for row, id_ in zip(fresh, prompt[1:], strict=True)], abs=1e-4
    )


@pytest.mark.parametrize("kind", ["qwen3", "llama tied", "mistral sliding", "gemma3"])
def test_in_bf16_nothing_but_rounding_differs(kind: str) -> None:
    requests = [ask(prompt, TOKENS, sampling=seeded(n)) for n, prompt in enumerate(_prompts(8))]
    core, plain = core_of(kind, model=fresh(kind).bfloat16()), fresh(kind).bfloat16()
    differences = []
    for request, heard in zip(requests, answers(core, requests), strict=True):
        rows = oracle.logprobs_after(plain, request.prompt_ids, heard.ids)
        fresh_logprobs = rows[range(TOKENS), heard.ids]
        differences += (torch.tensor(heard.logprobs) - fresh_logprobs).abs().tolist()
    assert sum(differences) / len(differences) < 0.03
    assert max(differences) < 0.3
