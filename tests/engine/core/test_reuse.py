"""Keys and values of earlier calls are found again: the answers stay the same, the work is saved."""

from __future__ import annotations

import pytest

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.request import GenerationRequest
from tests.engine.core.build import (
    KINDS,
    Heard,
    add,
    answer,
    ask,
    core_of,
    prompt_of,
    require_idle,
    run,
    seeded,
    staged,
    steps,
)


def _require_as_alone(request: GenerationRequest, heard: Heard, kind: str = "qwen3") -> None:
    """What a core that holds nothing answers."""
    alone = answer(core_of(kind, slots=1), request)
    assert heard.ids == alone.ids
    assert heard.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def _computed(core: Core, request: GenerationRequest) -> tuple[Heard, int]:
    before = core.stats.computed_tokens
    heard = answer(core, request)
    return heard, core.stats.computed_tokens - before


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_extends_another_computes_only_what_is_new(kind: str) -> None:
    core = core_of(kind)
    prompt = prompt_of(90)
    first = answer(core, ask(prompt, 10))
    longer = ask([*prompt, *first.ids, *prompt_of(7)], 10)
    heard, computed = _computed(core, longer)
    assert heard.start is not None
    # The last sampled token was never computed.
    assert heard.start.cached_tokens == 99
    assert computed == 1 + 7 + 9
    _require_as_alone(longer, heard, kind)
    assert core.stats.prompt_tokens == 90 + 107
    assert core.stats.cached_tokens == 99


@pytest.mark.parametrize("shared", [16, 47, 64])
def test_a_branch_copies_what_it_shares_and_leaves_the_other_alone(shared: int) -> None:
    core = core_of()
    prompt = prompt_of(80)
    answer(core, ask(prompt, 12))
    branch = ask([*prompt[:shared], *prompt_of(30, seed=9)], 12)
    heard, computed = _computed(core, branch)
    assert heard.start is not None
    assert heard.start.cached_tokens == shared
    assert computed == 30 + 11
    _require_as_alone(branch, heard)
    again = ask(prompt, 12)
    heard, computed = _computed(core, again)
    assert heard.start is not None
    assert heard.start.cached_tokens == 79
    assert computed == 1 + 11
    _require_as_alone(again, heard)


def test_fewer_than_a_block_in_common_is_not_looked_for() -> None:
    core = core_of()
    answer(core, ask(prompt_of(40), 4))
    heard = answer(core, ask([*prompt_of(40)[:15], *prompt_of(20, seed=1)], 4))
    assert heard.start is not None
    assert heard.start.cached_tokens == 0


def test_a_retry_while_the_first_is_answering_copies_its_prompt() -> None:
    core = core_of()
    prompt = prompt_of(60)
    (first,) = add(core, ask(prompt, 20))
    steps(core, 5)
    (second,) = add(core, ask(prompt, 20, sampling=seeded(4)))
    run(core)
    assert second.start is not None
    assert second.start.cached_tokens == 59
    assert core.stats.computed_tokens == 60 + 19 + 1 + 19
    _require_as_alone(ask(prompt, 20), first)
    _require_as_alone(ask(prompt, 20, sampling=seeded(4)), second)


def test_siblings_that_arrive_at_once_compute_their_common_beginning_once() -> None:
    core = core_of(step_tokens=50)
    common = prompt_of(300)
    requests = [ask([*common, *prompt_of(5, seed)], 6, sampling=seeded(seed)) for seed in range(8)]
    heard = add(core, *requests)
    run(core)
    assert core.stats.computed_tokens <= 305 + 7 * (5 + 16) + 8 * 5
    for request, one in zip(requests, heard, strict=True):
        _require_as_alone(request, one)
    assert sum(one.start.cached_tokens == 0 for one in heard if one.start) == 1


def test_a_short_prompt_waits_neither_for_siblings_ahead_of_it_nor_for_a_long_one() -> None:
    core = core_of(step_tokens=10)
    common = prompt_of(300)
    *_, other = add(core, ask(common, 40), ask([*common, 1], 40), ask(prompt_of(5), 4))
    steps(core, 5)
    assert other.reason == "length"
    run(core)
    require_idle(core)


def test_a_sibling_waits_for_what_it_shares_and_no_longer() -> None:
    core = core_of(step_tokens=20)
    common = prompt_of(100)
    long, short = ask([*common, *prompt_of(900, 1)], 4), ask([*common, *prompt_of(9, 2)], 4)
    first, second = add(core, long, short)
    while not second.ends:
        core.step()
    assert not first.starts
    assert second.start is not None and second.start.cached_tokens == 100
    _require_as_alone(short, second)
    run(core)
    _require_as_alone(long, first)
    assert core.stats.computed_tokens == 1000 + 9 + 2 * 3
    again = answer(core, long)
    assert again.finish is not None and again.finish.cached_tokens == 999


def test_nobody_waits_for_memory_of_older_weights() -> None:
    core = core_of(step_tokens=20)
    prompt = prompt_of(600)
    add(core, ask(prompt, 40))
    while not core.stats.generated_tokens:
        core.step()
    core.publish(staged(1), version="2", in_flight="keep")
    add(core, ask(prompt, 4))
    core.step()
    assert core.stats.running == 2
    run(core)


def test_the_prompts_log_probabilities_are_computed_with_the_whole_prompt() -> None:
    core = core_of()
    prompt = prompt_of(50)
    answer(core, ask(prompt, 3))
    heard, computed = _computed(core, ask(prompt, 3, prompt_logprobs=0))
    assert heard.start is not None
    assert heard.start.cached_tokens == 0
    assert heard.start.prompt_logprobs is not None
    assert len(heard.start.prompt_logprobs) == 49
    assert computed == 50 + 2


def test_a_continuation_finds_the_undisturbed_runs_memory() -> None:
    core = core_of()
    prompt = prompt_of(40)
    request = ask(prompt, 20, sampling=seeded(8))
    whole = answer(core, request)
    rest = ask(prompt, 20, sampling=seeded(8), output_ids=whole.ids[:11])
    heard, computed = _computed(core, rest)
    assert heard.ids == whole.ids[11:]
    assert computed == 20 - 11
    assert heard.start is not None
    assert heard.start.cached_tokens == 40


@pytest.mark.parametrize("cut", [1, 7, 19])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_continuation_from_ids_is_the_undisturbed_run(cut: int, greedy: bool) -> None:
    how = seeded(3, temperature=0 if greedy else 1.2, top_p=0.9)
    prompt = prompt_of(33)
    whole = answer(core_of(), ask(prompt, 20, sampling=how))
    rest = answer(core_of(), ask(prompt, 20, sampling=how, output_ids=whole.ids[:cut]))
    assert rest.ids == whole.ids[cut:]
    assert rest.logprobs == pytest.approx(whole.logprobs[cut:], abs=1e-4)
    assert rest.reason == whole.reason == "length"


def test_kept_memory_gives_way_least_recently_used_first() -> None:
    core = core_of(kv_tokens=640)
    prompts = [prompt_of(100, seed) for seed in range(8)]
    for prompt in prompts:
        answer(core, ask(prompt, 4))
        answer(core, ask(prompts[0], 4))
        assert core.stats.kv_bytes <= core.limits.kv_bytes
    assert 1 < core.stats.kept < 8
    kept = answer(core, ask(prompts[0], 4))
    gone = answer(core, ask(prompts[1], 4))
    assert kept.finish is not None and kept.finish.cached_tokens == 99
    assert gone.finish is not None and gone.finish.cached_tokens == 0
