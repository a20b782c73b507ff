"""Random schedules: what is done around a request never changes what it says, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gyre.elastic.engine.request import GenerationRequest
from tests.engine.core.build import ask, seeded
from tests.engine.core.schedule import Schedule, Story, related_prompt

WHERE = st.integers(0, 1)
WHICH = st.integers(0, 50)
STOPS = frozenset(range(0, 199, 30))
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20},
    {"min_p": 0.1},
]
Deed = Callable[[Schedule], None]


@st.composite
def calls(draw: st.DrawFn) -> list[GenerationRequest]:
    """One to four choices."""
    prompt = related_prompt(draw(st.integers(0, 8)), draw(st.sampled_from([1, 2, 17, 33, 50, 64, 90])))
    how, stops = draw(st.sampled_from(SAMPLINGS)), draw(st.sampled_from([frozenset(), STOPS]))
    prompt_logprobs = draw(st.sampled_from([None, None, None, None, 0, 1]))
    first, length = draw(st.integers(0, 5)), draw(st.sampled_from([1, 2, 8, 20, 40]))
    return [
        ask(
            prompt,
            length + n,
            sampling=seeded(first + n, **how),
            stop_ids=stops,
            prompt_logprobs=prompt_logprobs,
        )
        for n in range(draw(st.sampled_from([1, 1, 1, 2, 4])))
    ]


def _add(call: list[GenerationRequest], where: int) -> Deed:
    return lambda schedule: schedule.add(call, where)


def _step(where: int, count: int) -> Deed:
    def deed(schedule: Schedule) -> None:
        schedule.resume(where)
        for _ in range(count):
            schedule.step(where)

    return deed


def _with_one(stories: list[Story], which: int, deed: Callable[[Story], None]) -> None:
    if stories:
        deed(stories[which % len(stories)])


def _abort(which: int) -> Deed:
    return lambda schedule: _with_one(schedule.live, which, schedule.abort)


def _move(which: int, by_name: bool) -> Deed:
    return lambda schedule: _with_one(
        schedule.live, which, lambda story: schedule.move(story, by_name=by_name)
    )


def _go_on(which: int, where: int) -> Deed:
    return lambda schedule: _with_one(schedule.open, which, lambda story: schedule.go_on(story, where))


def _pause(where: int, mode: str) -> Deed:
    return lambda schedule: schedule.pause(where, mode)


def _publish(in_flight: str) -> Deed:
    return lambda schedule: schedule.publish(in_flight)


def _forget(where: int) -> Deed:
    return lambda schedule: schedule.forget(where)


def _often(weights: dict[SearchStrategy[Deed], int]) -> SearchStrategy[Deed]:
    """`one_of` takes each strategy once, however often it is named."""
    names = [strategy for strategy, weight in weights.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda strategy: strategy)


DEEDS = _often(
    {
        st.builds(_add, calls(), WHERE): 5,
        st.builds(_step, WHERE, st.integers(1, 25)): 10,
        st.builds(_abort, WHICH): 1,
        st.builds(_move, WHICH, st.booleans()): 3,
        st.builds(_go_on, WHICH, WHERE): 2,
        st.builds(_pause, WHERE, st.sampled_from(["keep", "wait", "keep", "wait", "abort"])): 1,
        st.builds(_publish, st.sampled_from([*["keep"] * 4, *["recompute"] * 2, "abort"])): 1,
        st.builds(_forget, WHERE): 1,
    }
)
SCHEDULES = st.builds(
    Schedule,
    kind=st.sampled_from(["qwen3", "qwen3", "qwen3 mixed"]),
    slots=st.sampled_from([1, 2, 3, 6, 16]),
    step_tokens=st.sampled_from([2, 5, 16, 60, 256]),
    kv_tokens=st.sampled_from([192, 320, 450, 700, 5000]),
    ahead=st.sampled_from([1, 1, 1, 512]),
)
QUICK = settings(
    max_examples=15,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _follow(schedule: Schedule, deeds: list[Deed]) -> None:
    for deed in deeds:
        deed(schedule)
    schedule.end()


@pytest.mark.timeout(900)  # a fault is made small first, which takes its time
@QUICK
@given(SCHEDULES, st.lists(DEEDS, min_size=10, max_size=30))
def test_no_schedule_changes_what_a_request_says(schedule: Schedule, deeds: list[Deed]) -> None:
    _follow(schedule, deeds)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(QUICK, max_examples=300)
@given(SCHEDULES, st.lists(DEEDS, min_size=20, max_size=100))
def test_no_long_schedule_changes_what_a_request_says(schedule: Schedule, deeds: list[Deed]) -> None:
    _follow(schedule, deeds)
