"""Requests that stop, ends that come from outside, and an engine that stands still."""

from __future__ import annotations

import pytest

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


def test_a_stop_id_ends_the_output_and_belongs_to_it() -> None:
    prompt = prompt_of(12)
    whole = answer(core_of(), ask(prompt, 20, sampling=seeded(1)))
    stop = whole.ids[6]
    first = whole.ids.index(stop)
    heard = answer(core_of(), ask(prompt, 20, sampling=seeded(1), stop_ids=frozenset({stop, 198})))
    assert heard.ids == whole.ids[: first + 1]
    assert heard.finish is not None
    assert (heard.reason, heard.finish.stop_id) == ("stop", stop)


def test_a_stop_id_in_the_prompt_or_in_what_was_sampled_before_ends_nothing() -> None:
    heard = answer(core_of(), ask([5, 6, 7], 4, output_ids=[6], stop_ids=frozenset({5, 6})))
    assert len(heard.ids) > 0


def test_the_listener_ends_an_output() -> None:
    core = core_of()
    heard = Heard(stop_after=3)
    core.add([(ask(prompt_of(5), 20), heard)])
    run(core)
    assert len(heard.ids) == 3
    assert heard.finish is not None
    assert (heard.reason, heard.finish.stop_id) == ("stop", None)
    require_idle(core)


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_max_tokens_counts_the_whole_output(max_tokens: int) -> None:
    assert len(answer(core_of(), ask(prompt_of(5), max_tokens)).ids) == max_tokens
    if max_tokens > 1:
        rest = answer(core_of(), ask(prompt_of(5), max_tokens, output_ids=[3]))
        assert len(rest.ids) == max_tokens - 1
        assert rest.reason == "length"


def test_an_abort_ends_a_request_wherever_it_is() -> None:
    core = core_of(slots=2, step_tokens=10)
    in_prompt, running, waiting = (
        ask(prompt_of(200), 5),
        ask(prompt_of(5), 50),
        ask(prompt_of(6), 5),
    )
    heard = add(core, running, in_prompt, waiting)
    steps(core, 3)
    assert len(heard[0].ids) > 0 and not heard[1].ids and not heard[2].ids
    core.abort(["unknown", *(one.request_id for one in (in_prompt, running, waiting))])
    assert [one.reason for one in heard] == ["abort"] * 3
    require_idle(core)
    assert not core.step()
    core.abort([running.request_id])
    # What they computed is kept all the same.
    again = answer(core, ask(prompt_of(200), 5))
    assert again.finish is not None and again.finish.cached_tokens >= 16


def test_an_id_is_free_again_once_its_request_has_ended() -> None:
    core = core_of()
    request = ask(prompt_of(5), 2)
    assert answer(core, request).ids == answer(core, request).ids


def test_a_pause_that_keeps_changes_no_token() -> None:
    core = core_of(slots=3, step_tokens=20)
    requests = [ask(prompt_of(70, n), 12, sampling=seeded(n)) for n in range(5)]
    heard = add(core, *requests[:4])
    for _ in range(30):
        core.pause("keep")
        assert core.still
        before = [list(one.ids) for one in heard]
        assert not core.step()
        assert [one.ids for one in heard] == before
        core.resume()
        assert not core.still
        core.step()
    core.pause("keep")
    heard += add(core, requests[4])
    assert not core.step()
    core.resume()
    run(core)
    assert [one.ids for one in heard] == [answer(core_of(), request).ids for request in requests]


def test_a_pause_that_aborts_ends_all_and_begins_nothing() -> None:
    core = core_of(slots=2)
    heard = add(core, ask(prompt_of(5), 50), ask(prompt_of(6), 50), ask(prompt_of(7), 50))
    heard += add_choices(core, ask(prompt_of(8), 5), ask(prompt_of(8), 5))
    steps(core, 3)
    core.pause("abort")
    assert [one.reason for one in heard] == ["abort"] * 5
    require_idle(core)
    (late,) = add(core, ask(prompt_of(5), 3))
    assert not core.step()
    assert core.still
    core.resume()
    run(core)
    assert late.reason == "length"


def test_a_pause_that_waits_lets_running_ones_end_and_begins_nothing() -> None:
    core = core_of(slots=2, step_tokens=20)
    running = add(core, ask(prompt_of(5), 10), ask(prompt_of(60), 10))
    core.step()
    core.pause("wait")
    assert not core.still
    waiting = add(core, ask(prompt_of(7), 3))
    run(core)
    assert core.still
    assert [one.reason for one in running] == ["length"] * 2
    assert not waiting[0].tokens
    core.resume()
    run(core)
    assert waiting[0].reason == "length"
    require_idle(core)


def test_a_request_may_be_aborted_while_all_stands_still() -> None:
    core = core_of()
    request = ask(prompt_of(5), 50)
    (heard,) = add(core, request)
    steps(core, 2)
    core.pause("keep")
    core.abort([request.request_id])
    assert heard.reason == "abort"
    require_idle(core)
