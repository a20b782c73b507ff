"""Random executions with known truth: every link right with labels, nearly every one without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.treebuilder.builder import Builder
from tests.trees.world.built import build, plain
from tests.trees.world.confusion import Confusion, misgrouped
from tests.trees.world.emit import View, emit
from tests.trees.world.oracle import sampled, violations
from tests.trees.world.story import FEW, QUICK, Story, stories
from tests.trees.world.wires import Form

LONG = settings(QUICK, max_examples=3000)
"""The same stories each time, so that a failure stands still."""
FORMS = st.sampled_from(Form)


def check_links(story: Story, form: Form, total: Confusion) -> None:
    rows = story.act().rows
    tree = build(emit(rows, View(total.labels, total.ids, form=form)))
    confusion = Confusion(total.labels, total.ids)
    confusion.add(tree, rows)
    assert not confusion.guessed
    if total.ids:
        assert not violations(tree, rows)
    if total.labels:
        assert not confusion.silent
        assert not misgrouped(tree, rows, labels=True)
        assert tree.disagreements == []
    total.merge(confusion)


def run(test: Callable[..., None], how: settings, confusion: Confusion) -> None:
    @how
    @given(stories(confusion.labels), FORMS)
    def examples(story: Story, form: Form) -> None:
        test(story, form, confusion)

    examples()


def report(title: str, confusion: Confusion, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{title}\n{confusion.table()}\n")


def test_with_labels_every_link_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    confusion = Confusion(labels=True)
    run(check_links, QUICK, confusion)
    report("with ids and labels", confusion, capsys)
    assert confusion.share == 1


def test_without_labels_links_that_evidence_decides_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    confusion = Confusion(labels=False)
    run(check_links, QUICK, confusion)
    report("with ids, labels hidden", confusion, capsys)
    assert confusion.share >= 0.99, "\n".join(confusion.silent[:20])


def test_without_ids_messages_tell_the_same_story(capsys: pytest.CaptureFixture[str]) -> None:
    confusion = Confusion(labels=False, ids=False)
    run(check_links, QUICK, confusion)
    report("messages only, labels hidden", confusion, capsys)
    assert confusion.share >= 0.99, "\n".join(confusion.silent[:20])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("labels", "ids"), [(True, True), (False, True), (False, False)])
def test_many_more_links(labels: bool, ids: bool, capsys: pytest.CaptureFixture[str]) -> None:
    confusion = Confusion(labels, ids)
    run(check_links, LONG, confusion)
    report(f"many, ids: {ids}, labels: {labels}", confusion, capsys)
    assert confusion.share >= (1 if labels else 0.99), "\n".join(confusion.silent[:20])


@QUICK
@given(stories(), FORMS, st.booleans())
def test_each_token_that_a_trainable_call_sampled_is_a_target_once(
    story: Story, form: Form, labels: bool
) -> None:
    rows = story.act().rows
    tree = build(emit(rows, View(labels=labels, form=form)))
    assert (tree.sampled_tokens, tree.targets) == sampled(rows, labels)


@FEW
@given(stories(), FORMS, st.booleans())
def test_how_calls_come_in_makes_no_difference(story: Story, form: Form, labels: bool) -> None:
    rows = story.act().rows
    record = emit(rows, View(labels=labels, form=form))
    whole = emit(rows, View(labels=labels, form=form, deltas=False))
    builder = Builder("e1", bodies=record.bodies)
    for call in record.calls:
        builder.add(call)
        builder.tree()
    assert plain(builder.tree()) == plain(build(record)) == plain(build(whole))


@FEW
@given(stories(), FORMS, st.booleans())
def test_without_ids_there_is_a_tree_but_nothing_to_train(story: Story, form: Form, labels: bool) -> None:
    rows = story.act().rows
    tree = build(emit(rows, View(labels=labels, ids=False, form=form)))
    assert not tree.exact
    assert len(tree.links) == len(rows)
    assert not any(node.target for node in tree.nodes)
    assert tree.targets == tree.kept_targets == sum(link.targets for link in tree.links) == 0
