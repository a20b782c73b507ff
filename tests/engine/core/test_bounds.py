"""Memory and queue have bounds, and what does not fit gives way without a wrong token."""

from __future__ import annotations

import pytest

from gyre.elastic.engine.core import Core
from gyre.proxy.errors import RequestError
from tests.engine.core.build import (
    Heard,
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


def _run_within(core: Core) -> None:
    while core.step():
        assert core.stats.kv_bytes <= core.limits.kv_bytes
    require_idle(core)


@pytest.mark.parametrize("kv_tokens", [128, 200, 300])
def test_under_a_small_bound_sequences_take_turns(kv_tokens: int) -> None:
    # Each needs 128; all together 6 times that.
    requests = [ask(prompt_of(60, n), 20, sampling=seeded(n)) for n in range(6)]
    core = core_of(kv_tokens=kv_tokens)
    heard = add(core, *requests)
    _run_within(core)
    for request, one in zip(requests, heard, strict=True):
        alone = answer(core_of(), request)
        assert one.ids == alone.ids
        assert one.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        assert one.reason == "length"


def test_whoever_came_last_gives_way_and_comes_back() -> None:
    # 576 tokens are taken at once for each; both outgrow that.
    requests = [ask(prompt_of(64, n), 540) for n in range(2)]
    core = core_of(kv_tokens=1152)
    first, second = add(core, *requests)
    while not first.ends:
        core.step()
    assert not second.ends
    _run_within(core)
    assert core.stats.preemptions == 1
    assert first.reason == second.reason == "length"
    for request, one in zip(requests, (first, second), strict=True):
        assert one.ids == answer(core_of(), request).ids
        assert one.finish is not None and one.start is not None
        assert one.finish.cached_tokens == one.start.cached_tokens == 0


def test_a_sequence_in_its_prompt_gives_way_with_its_log_probabilities() -> None:
    core = core_of(kv_tokens=960, step_tokens=8)
    first = add(core, ask(prompt_of(64), 540))[0]
    while len(first.tokens) < 500:
        core.step()
    late = ask(prompt_of(320, 2), 10, prompt_logprobs=0)
    (second,) = add(core, late)
    _run_within(core)
    assert core.stats.preemptions == 1
    assert first.reason == second.reason == "length"
    alone = answer(core_of(), late)
    assert second.start is not None and alone.start is not None
    assert second.start.prompt_logprobs is not None and alone.start.prompt_logprobs is not None
    assert [row.id for row in second.start.prompt_logprobs] == late.prompt_ids[1:]
    assert [row.logprob for row in second.start.prompt_logprobs] == pytest.approx(
        [row.logprob for row in alone.start.prompt_logprobs], abs=1e-4
    )


def test_a_lone_sequence_may_use_the_whole_bound_and_no_more() -> None:
    core = core_of(kv_tokens=350)  # of which 320 are whole grains
    heard = answer(core, ask(prompt_of(30), 290))
    assert heard.reason == "length"
    assert heard.ids == answer(core_of(), ask(prompt_of(30), 290)).ids
    with pytest.raises(RequestError, match="321 tokens take") as refused:
        core.add([(ask(prompt_of(30), 291), Heard())])
    assert refused.value.code == "context_length_exceeded"


def test_memory_that_cannot_grow_by_half_grows_by_what_is_needed() -> None:
    core = core_of(kv_tokens=256)
    core.memory.ahead = 1
    (heard,) = add(core, ask(prompt_of(10), 240))
    _run_within(core)
    assert heard.reason == "length"
    assert core.stats.preemptions == 0


def test_those_who_wait_behind_it_are_served() -> None:
    core = core_of(kv_tokens=320)
    heard = add(core, ask(prompt_of(30), 290), *[ask(prompt_of(200, n), 9) for n in range(3)])
    _run_within(core)
    assert [one.reason for one in heard] == ["length"] * 4
    assert core.stats.failures == 0


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    core = core_of(kv_tokens=128)
    with pytest.raises(RequestError, match="keys and values") as refused:
        core.add([(ask(prompt_of(128), 1), Heard())])
    assert refused.value.status == 400
    with pytest.raises(RequestError, match="keys and values"):
        core.add([(ask(prompt_of(8), 200, output_ids=prompt_of(120)), Heard())])
    assert answer(core, ask(prompt_of(127), 1)).reason == "length"
    require_idle(core)


def test_more_choices_than_there_are_places_are_no_overload() -> None:
    core = core_of(slots=2, queue=3)
    with pytest.raises(RequestError, match="`n` is 6, the engine has 5 places") as refused:
        add_choices(core, *[ask(prompt_of(9), 4) for _ in range(6)])
    assert refused.value.status == 400


def test_a_full_queue_refuses_whole_calls() -> None:
    core = core_of(slots=2, queue=3)
    heard = add(core, *[ask(prompt_of(9, n), 4) for n in range(4)])
    pair = [ask(prompt_of(9), 4), ask(prompt_of(9), 4)]
    with pytest.raises(RequestError) as refused:
        add_choices(core, *pair)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    heard += add(core, pair[0])
    run(core)
    heard += add_choices(core, *pair)
    run(core)
    require_idle(core)
    assert [one.reason for one in heard] == ["length"] * 7


def test_kept_conversations_make_room_for_running_ones() -> None:
    core = core_of(kv_tokens=640)
    for n in range(4):
        answer(core, ask(prompt_of(100, n), 20))
    before = core.stats.kept
    (heard,) = add(core, ask(prompt_of(400, 7), 100))
    steps(core, 3)
    assert core.stats.kept < before
    _run_within(core)
    assert heard.reason == "length"
