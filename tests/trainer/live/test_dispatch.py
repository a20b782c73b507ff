"""Dispatch and consumption: staleness is bounded, nothing is discarded, nothing waits without need."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from gyre.trainer.live.dispatch import Dispatch, Pace

PACES = st.builds(
    Pace,
    groups_per_batch=st.integers(1, 6),
    burst=st.integers(1, 4),
    look_ahead=st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.7]),
    batches=st.integers(1, 14),
)


def test_q_b_of_the_paper() -> None:
    """Q_b = (phi + mu) B, arXiv 2609.33848."""
    pace = Pace(groups_per_batch=4, burst=3, look_ahead=1.5, batches=48)
    assert pace.depth == 18
    assert len(Dispatch(pace=pace).begin_burst()) == 18


def test_without_look_ahead_a_burst_dispatches_what_it_consumes() -> None:
    dispatch = Dispatch(pace=Pace(groups_per_batch=2, burst=1, look_ahead=0.0, batches=2))
    assert dispatch.begin_burst() == [0, 1]
    assert [dispatch.consume(1), dispatch.consume(0)] == [0, 0]
    dispatch.end_burst()
    assert dispatch.begin_burst() == [2, 3]


@given(PACES, st.randoms(use_true_random=False))
def test_staleness_never_exceeds_phi_over_mu_and_every_group_is_consumed_once(
    pace: Pace, order: Random
) -> None:
    """Groups become ready in any order, which is decided here; whoever may enter first does."""
    dispatch, consumed, stale = Dispatch(pace=pace), list[int](), list[int]()
    while not dispatch.over:
        dispatch.begin_burst()
        assert len(dispatch.waiting) <= pace.depth
        waiting = list(dispatch.waiting)
        order.shuffle(waiting)
        while dispatch.places:
            group = next(one for one in waiting if dispatch.may_enter(one))
            waiting.remove(group)
            consumed.append(group)
            stale.append(dispatch.consume(group))
        dispatch.end_burst()
    assert dispatch.burst == math.ceil(pace.batches / pace.burst)
    assert sorted(consumed) == list(range(pace.batches * pace.groups_per_batch))
    assert not dispatch.waiting
    assert max(stale) <= math.ceil(pace.look_ahead / pace.burst)


@given(PACES)
def test_a_dispatch_that_goes_on_from_what_is_remembered_decides_the_same(pace: Pace) -> None:
    first = Dispatch(pace=pace)
    while not first.over:
        second = Dispatch(
            pace=pace,
            burst=first.burst,
            batch=first.batch,
            dispatched=first.dispatched,
            waiting=dict(first.waiting),
        )
        assert first.begin_burst() == second.begin_burst()
        assert first.waiting == second.waiting and first.places == second.places
        while first.places:
            first.consume(min(first.waiting))
        first.end_burst()


@given(PACES, st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=5))
@example(Pace(groups_per_batch=1, look_ahead=3.0, batches=20), [(5, 20), (1, 6)])
def test_a_run_that_goes_on_with_another_number_of_batches_trains_that_many(
    pace: Pace, changes: list[tuple[int, int]]
) -> None:
    """Longer and shorter, again and again: what is on its way may then be too much, or too late, but nothing
    waits for ever. The youngest are ready first."""
    dispatch, consumed = Dispatch(pace=pace), 0
    for bursts, batches in [*changes, (1000, 20)]:
        dispatch.pace = replace(pace, batches=max(batches, dispatch.batch))
        for _ in range(bursts):
            if dispatch.over:
                break
            dispatch.begin_burst()
            while dispatch.places:
                dispatch.consume(next(one for one in reversed(dispatch.waiting) if dispatch.may_enter(one)))
                consumed += 1
            dispatch.end_burst()
    assert dispatch.over
    assert consumed == dispatch.pace.batches * pace.groups_per_batch


def test_a_run_that_was_shortened_ended_and_lengthened_takes_the_oldest_first() -> None:
    """More of them are at their limit than the burst has places."""
    pace = Pace(groups_per_batch=1, burst=1, look_ahead=3.0, batches=20)
    waiting = {5: 2, 6: 3}
    dispatch = Dispatch(pace=pace, burst=6, batch=6, dispatched=8, waiting=waiting)
    assert dispatch.begin_burst() == [8, 9]
    assert [one for one in dispatch.waiting if dispatch.may_enter(one)] == [5]


def test_a_ready_group_waits_where_the_places_left_are_those_of_overdue_ones() -> None:
    dispatch = Dispatch(pace=Pace(groups_per_batch=2, burst=1, look_ahead=1.0, batches=9))
    assert dispatch.begin_burst() == [0, 1, 2, 3]
    dispatch.consume(2)
    dispatch.consume(3)
    dispatch.end_burst()
    assert dispatch.begin_burst() == [4, 5]
    assert not dispatch.may_enter(4) and dispatch.may_enter(0)
    dispatch.consume(0)
    with pytest.raises(ValueError, match="group 5"):
        dispatch.consume(5)
    dispatch.consume(1)
    dispatch.end_burst()


def test_a_group_waits_for_others_that_reach_their_limit_in_the_next_burst() -> None:
    """phi = 2: two groups of burst 0 would come to their limit in burst 2, which has one place."""
    dispatch = Dispatch(pace=Pace(groups_per_batch=1, burst=1, look_ahead=2.0, batches=4))
    dispatch.begin_burst()
    dispatch.consume(0)
    dispatch.end_burst()
    assert dispatch.begin_burst() == [3]
    assert [dispatch.may_enter(group) for group in (1, 2, 3)] == [True, True, False]


def test_a_burst_cannot_end_with_places_left() -> None:
    dispatch = Dispatch(pace=Pace(groups_per_batch=1, batches=1))
    dispatch.begin_burst()
    with pytest.raises(ValueError, match="1 places"):
        dispatch.end_burst()
