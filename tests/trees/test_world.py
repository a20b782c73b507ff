"""The world itself: the same story twice is the same, causes come before effects, nothing is missing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gyre.treebuilder.trees import Cause
from tests.trees.world.compaction import Family
from tests.trees.world.emit import View, emit, in_commit_order
from tests.trees.world.story import FEW, KINDS, Action, Story, stories
from tests.trees.world.wires import Form


@FEW
@given(stories())
def test_the_same_story_is_told_twice_in_the_same_words(story: Story) -> None:
    assert story.act().rows == story.act().rows


@FEW
@given(stories())
def test_what_a_call_came_from_was_recorded_before_it(story: Story) -> None:
    rows = in_commit_order(story.act().rows)
    place = {row.key: i for i, row in enumerate(rows)}
    assert len(place) == len(rows)
    for row in rows:
        origin = row.truth.origin
        if origin and row.truth.cause is not Cause.RETRY:
            assert place[origin] < place[row.key]
            assert next(other for other in rows if other.key == origin).ended < row.started


@FEW
@given(stories(), st.sampled_from(Form))
def test_a_delta_is_made_of_what_was_recorded_before(story: Story, form: Form) -> None:
    rows = {row.key: row for row in story.act().rows}
    record = emit(list(rows.values()), View(form=form))
    whole = emit(list(rows.values()), View(form=form, deltas=False))
    lists = {call.key: call.messages for call in whole.calls}
    for call in record.calls:
        shared = lists[call.parent][: call.messages_shared] if call.parent else []
        assert shared + call.messages == lists[call.key]
        if call.suffix is not None:
            start = rows[call.parent].path.ids[: call.shared] if call.parent else []
            assert start + call.suffix.tolist() == rows[call.key].prompt.ids


def test_every_cause_happens() -> None:
    picks = range(len(Family))
    acted = [Story((Action("work"), Action(kind, pick=i)), seed=i).act() for kind in KINDS for i in picks]
    causes = Counter(row.truth.cause for world in acted for row in world.rows)
    assert set(Cause) - set(causes) == {Cause.REASONING_STRIPPED, Cause.RETOKENIZED, Cause.UNKNOWN}
    steps = {row.truth.step for world in acted for row in world.rows}
    said = {"summary", "restart", "blocking", "background", "nested", "forked", "response_absent"}
    assert steps - {None} == said
