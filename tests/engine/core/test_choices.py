"""The choices of a call compute their prompt once, and each lives and ends for itself."""

from __future__ import annotations

import pytest

from gyre.elastic.engine.request import GenerationRequest
from tests.engine.core.build import (
    add,
    add_choices,
    answer,
    ask,
    core_of,
    prompt_of,
    require_idle,
    run,
    seeded,
    steps,
)

PROMPT = prompt_of(130)


def _choices(count: int, max_tokens: int = 10, **rest: object) -> list[GenerationRequest]:
    return [ask(PROMPT, max_tokens, sampling=seeded(100 + n), **rest) for n in range(count)]


@pytest.mark.parametrize("slots", [16, 3, 1])
def test_the_prompt_is_computed_once_and_each_choice_is_as_if_alone(slots: int) -> None:
    core = core_of(slots=slots)
    requests = _choices(6)
    heard = add_choices(core, *requests)
    run(core)
    require_idle(core)
    late = max(0, 6 - slots)
    assert core.stats.computed_tokens == 130 + 6 * 9 + late
    assert [one.ids for one in heard] == [answer(core_of(), request).ids for request in requests]
    assert len({tuple(one.ids) for one in heard}) > 3
    assert {one.reason for one in heard} == {"length"}


def test_what_is_found_for_the_prompt_is_found_for_every_choice() -> None:
    core = core_of()
    answer(core, ask(PROMPT[:100], 1))
    heard = add_choices(core, *_choices(3))
    run(core)
    assert [one.start.cached_tokens for one in heard if one.start] == [100] * 3


def test_choices_may_be_of_different_length_and_stop_each_for_itself() -> None:
    core = core_of()
    alone = [answer(core_of(), request) for request in _choices(3, 20)]
    stops = frozenset({alone[1].ids[4]})
    requests = [
        ask(PROMPT, length, sampling=seeded(100 + n), stop_ids=stops if n == 1 else frozenset())
        for n, length in enumerate((3, 20, 12))
    ]
    heard = add_choices(core, *requests)
    run(core)
    assert [len(one.ids) for one in heard] == [3, 1 + alone[1].ids.index(alone[1].ids[4]), 12]
    assert [one.reason for one in heard] == ["length", "stop", "length"]
    for one, whole in zip(heard, alone, strict=True):
        assert one.ids == whole.ids[: len(one.ids)]


@pytest.mark.parametrize("before", [0, 1], ids=["waiting", "in the prompt"])
@pytest.mark.parametrize("victims", [[0], [1], [0, 1], [0, 1, 2], [2]])
def test_choices_that_end_before_the_prompt_is_read_keep_the_others(before: int, victims: list[int]) -> None:
    core = core_of(step_tokens=20)
    requests = _choices(4)
    heard = add_choices(core, *requests)
    steps(core, before)
    core.abort([requests[victim].request_id for victim in victims])
    run(core)
    require_idle(core)
    for index, (request, one) in enumerate(zip(requests, heard, strict=True)):
        if index in victims:
            assert one.reason == "abort"
            assert one.ids == []
        else:
            assert one.ids == answer(core_of(), request).ids
    # What the first had computed serves the next.
    assert core.stats.computed_tokens <= 130 + (4 - len(victims)) * 9 + 20


def test_an_heir_keeps_its_place_in_the_queue() -> None:
    core = core_of(slots=1)
    (first,) = add(core, ask(prompt_of(5), 3))
    requests = _choices(2, 3)
    heard = add_choices(core, *requests)
    (last,) = add(core, ask(prompt_of(6), 3))
    steps(core, 1)
    core.abort([requests[0].request_id])
    while not last.ends:
        core.step()
    assert first.reason == heard[1].reason == "length"
    require_idle(core)


@pytest.mark.parametrize("slots", [8, 1])
def test_every_choice_hears_the_prompts_log_probabilities(slots: int) -> None:
    core = core_of(slots=slots)
    heard = add_choices(core, *_choices(3, prompt_logprobs=1))
    run(core)
    told = [one.start.prompt_logprobs for one in heard if one.start and one.start.prompt_logprobs]
    assert [len(rows) for rows in told] == [129, 129, 129]
    for rows in told[1:]:
        assert [row.id for row in rows] == [row.id for row in told[0]]
        assert [row.logprob for row in rows] == pytest.approx([row.logprob for row in told[0]], abs=1e-4)


def test_a_continued_call_forks_behind_its_output() -> None:
    core = core_of()
    output = answer(core_of(), ask(PROMPT, 12, sampling=seeded(100))).ids[:5]
    heard = add_choices(core, *_choices(3, 12, output_ids=output))
    run(core)
    assert core.stats.computed_tokens == 135 + 3 * 6
    alone = [answer(core_of(), request) for request in _choices(3, 12, output_ids=output)]
    assert [one.ids for one in heard] == [one.ids for one in alone]


def test_choices_without_room_wait_for_their_turn() -> None:
    core = core_of(kv_tokens=450)
    requests = _choices(5, 30)
    heard = add_choices(core, *requests)
    while core.step():
        assert core.stats.kv_bytes <= core.limits.kv_bytes
    require_idle(core)
    assert [one.ids for one in heard] == [answer(core_of(), request).ids for request in requests]
