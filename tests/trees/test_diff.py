"""What two builds do not have in common."""

from __future__ import annotations

import json
from dataclasses import replace

from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import CallKey, Cause, Role
from gyre.treebuilder.views.diff import (
    Change,
    ExecutionDiff,
    TreesDiff,
    diff_summaries,
    diff_trees,
)
from tests.trees.made import Made, typical


def changes(before: Made, after: Made) -> list[tuple[str, str | None, object, object]]:
    found = diff_trees(before.tree(), after.tree())
    return [(c.what, c.call.call_id if c.call else None, c.before, c.after) for c in found]


def test_the_same_tree_has_no_changes() -> None:
    assert changes(typical(), typical()) == []


def test_contexts_and_nodes_numbered_otherwise_are_no_change() -> None:
    other = typical()
    for link in other.links:
        link.context_id += 10
    for trajectory in other.trajectories:
        trajectory.context_id += 10
    assert changes(typical(), other) == []


def test_a_link_read_otherwise_is_named() -> None:
    other = typical()
    other.links[3].role = Role.SIDE
    other.links[3].cause = Cause.SIDE
    other.links[3].origin = None
    assert changes(typical(), other) == [
        ("cause", "s2", "continuation", "side"),
        ("role", "s2", "sub", "side"),
        ("origin", "s2", CallKey("s1"), None),
    ]


def test_another_selection_changes_kept_targets_and_trajectories() -> None:
    before, after = typical(), typical()
    after.admit("c4")
    assert changes(before, after) == [
        ("kept_targets", "c4", 0, 4),
        ("kept_targets", None, 98, 102),
        ("trajectories", None, [], ["main to c4: 64 tokens, 4 targets"]),
    ]


def test_a_call_that_lost_its_targets_says_why() -> None:
    after = typical()
    link = after.links[-1]
    link.untrained, link.targets = "greedy", 0
    after.nodes[link.output_node or 0].target = False
    assert changes(typical(), after) == [
        ("untrained", "odd", None, "greedy"),
        ("targets", "odd", 4, 0),
        ("targets", None, 102 + 4, 102),
    ]


def test_calls_that_only_one_has() -> None:
    after = typical()
    after.call("late", origin="c3", new=5, trained=False)
    found = changes(typical(), after)
    assert found[0] == ("added", "late", None, "continuation")
    assert ("removed", "late", "continuation", None) in changes(after, typical())


def test_what_was_said_of_an_execution() -> None:
    one = ExecutionSummary("a", score=0.5)
    assert list(diff_summaries(one, one)) == []
    assert list(diff_summaries(one, replace(one, score=1.0, group="g", targets=7))) == [
        Change("score", None, 0.5, 1.0),
        Change("group", None, None, "g"),
    ]


def test_other_options_with_the_same_outcome_are_no_difference() -> None:
    diff = TreesDiff(options={"seed": (0, 1)}, same=3)
    assert not diff.differs
    diff.changed.append(ExecutionDiff("e1", 0, [Change("cause", CallKey("c1"), "edit", "side")]))
    assert diff.differs
    document = json.loads(json.dumps(diff.as_dict()))
    assert document["changed"][0]["changes"] == [
        {"what": "cause", "call": ["c1", 0, 0], "before": "edit", "after": "side"}
    ]
