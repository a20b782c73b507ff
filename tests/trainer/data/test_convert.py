"""Trees as they are built become what training takes: every target once, none that may not be trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.data.convert import Lacks, train_tree
from gyre.trainer.data.tree import TrainTree
from gyre.treebuilder.export.rows import Place, rows_of
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree
from tests.trainer.data.folders import PLAIN, one_call
from tests.trees.export.builders import TreeBuilder, branching
from tests.trees.export.test_rows import CALL, grown


def told(tree: TrainTree) -> list[tuple[int, list[int], int | None]]:
    """(parent, ids, trajectory if these are targets) of each node."""
    return [
        (node.parent, node.token_ids.tolist(), node.target.trajectory if node.target else None)
        for node in tree.nodes
    ]


def test_a_tree_by_hand() -> None:
    found = train_tree(branching(), group="g", reward=0.5, advantage=-2.0)
    tree = found.tree
    assert told(tree) == [
        (-1, [1, 2, 3], None),
        (0, [10, 11], 0),
        (-1, [20, 21], None),
        (2, [30, 31, 32], 2),
        (1, [6], None),
        (4, [12, 13], 1),
        (1, [4, 5], None),
        (6, [14, 15], 0),
    ]
    assert (tree.execution_id, tree.attempt, tree.group) == ("good", 0, "g")
    assert (tree.reward, tree.advantage, tree.trajectories) == (0.5, -2.0, 3)
    assert (tree.targets, tree.tokens) == (9, 17)
    a, s, b = (tree.nodes[index].target for index in (1, 3, 5))
    assert a and s and b
    assert [run.temperature for run in (a, s, b)] == [1.0, 0.5, 0.7]
    assert s.logprobs is not None and s.logprobs.tolist() == [-0.25, -0.5, -0.75]
    assert b.versions == (("3", 0, 1), ("4", 1, 2))
    # 1 2 3 10 11 4 5 14, which predict 15.
    assert found.longest == 8


def test_what_is_not_kept_is_not_there() -> None:
    built = TreeBuilder("e")
    a = built.call("a", None, [1, 2], [3], **PLAIN)
    built.call("side", a, [4], [5], **PLAIN)
    built.admit(built.call("b", a, [6], [7], **PLAIN), 0)
    built.call("c", len(built.nodes) - 1, [8], [9], **PLAIN)
    assert told(train_tree(built.tree()).tree) == [
        (-1, [1, 2], None),
        (0, [3], 0),
        (1, [6], None),
        (2, [7], 0),
    ]


def test_trajectories_are_numbered_by_their_ids_without_gaps() -> None:
    tree = branching()
    for each, number in zip(tree.trajectories, (7, 9, 2), strict=True):
        each.trajectory_id = number
    assert [where for _, _, where in told(train_tree(tree).tree) if where is not None] == [1, 0, 2, 1]


def test_nothing_predicts_the_first_token_of_a_root() -> None:
    built = TreeBuilder("e")
    a = built.call("a", None, [], [3, 4, 5], versions=[("1", 0, 1), ("2", 1, 3)], **PLAIN)
    built.admit(built.call("b", a, [6], [7], **PLAIN), 0)
    built.admit(built.call("c", None, [], [8], **PLAIN), 1)
    found = train_tree(built.tree())
    assert told(found.tree) == [
        (-1, [3], None), (0, [4, 5], 0), (1, [6], None), (2, [7], 0), (-1, [8], None)
    ]  # fmt: skip
    assert found.lacks == Lacks(source=2)
    run = found.tree.nodes[1].target
    assert run and run.logprobs is not None and run.logprobs.tolist() == [-0.5, -0.75]
    assert run.versions == (("2", 0, 2),)


def test_empty_nodes_are_left_out() -> None:
    built = TreeBuilder("e")
    a = built.call("a", None, [1], [], **PLAIN)
    built.admit(built.call("b", a, [2], [3], **PLAIN), 0)
    assert told(train_tree(built.tree()).tree) == [(-1, [1], None), (0, [2], None), (1, [3], 0)]


@pytest.mark.parametrize(
    ("link", "temperature", "comparable"),
    [
        ({}, 1.0, True),
        ({"temperature": 0.6}, 0.6, True),
        ({"logprob_quality": "raw"}, 1.0, False),
        ({"logprob_quality": "unknown"}, 1.0, False),
        ({"logprob_quality": None}, 1.0, False),
        ({"sampling": "changed"}, 1.0, False),
        ({"sampling": None}, 1.0, False),
        ({"temperature": None}, 1.0, False),
        ({"temperature": 0.0}, 1.0, False),
        ({"temperature": float("nan")}, 1.0, False),
    ],
)
def test_log_probabilities_are_compared_where_it_is_known_what_they_are_of(
    link: dict[str, Any], temperature: float, comparable: bool
) -> None:
    built = TreeBuilder("e")
    built.admit(built.call("a", None, [1], [2, 3], **(PLAIN | link)), 0)
    found = train_tree(built.tree())
    run = found.tree.nodes[1].target
    assert run and (run.temperature, run.comparable) == (temperature, comparable)
    unknown = "temperature" in link and temperature == 1.0
    assert found.lacks == Lacks(comparable=2 * (not comparable), temperature=2 * unknown)


def test_a_target_without_its_call_is_of_a_temperature_that_is_not_known() -> None:
    tree = one_call("e")
    tree.links.clear()
    assert train_tree(tree).lacks == Lacks(comparable=2, temperature=2)


@pytest.mark.parametrize("logprobs", [None, [-1.0, np.nan], [-np.inf, -1.0]])
def test_log_probabilities_are_there_or_not(logprobs: list[float] | None) -> None:
    tree = one_call("e")
    tree.nodes[1].logprobs = None if logprobs is None else np.array(logprobs, np.float32)
    found = train_tree(tree)
    run = found.tree.nodes[1].target
    assert run and run.logprobs is None
    assert found.lacks == Lacks(logprobs=2)


def of_node(number: int, **values: Any) -> Callable[[ExecutionTree], None]:
    def change(tree: ExecutionTree) -> None:
        for name, value in values.items():
            setattr(tree.nodes[number], name, value)

    return change


CONTRADICTIONS: list[Callable[[ExecutionTree], object]] = [
    of_node(1, depth=4),
    of_node(1, parent_id=7),
    of_node(1, parent_id=1),
    of_node(0, parent_id=1),
    of_node(1, parent_id=None),
    of_node(1, admitted=False),
    of_node(0, admitted=False),
    of_node(2, admitted=True),
    of_node(1, target=False),
    of_node(1, token_ids=np.array([4, -5], np.int32)),
    of_node(1, token_ids=np.array([4, 5, 6], np.int32)),
    of_node(1, logprobs=np.zeros(1, np.float32)),
    of_node(1, version_spans=[("1", 0, 3)]),
    lambda tree: tree.trajectories.clear(),
    lambda tree: setattr(tree.trajectories[0], "leaf_node", 9),
    lambda tree: setattr(tree.trajectories[0], "leaf_node", -1),
    lambda tree: setattr(tree, "kept_targets", 3),
]


@pytest.mark.parametrize("change", CONTRADICTIONS)
def test_a_tree_that_contradicts_itself_is_refused(change: Callable[[ExecutionTree], object]) -> None:
    built = TreeBuilder("e")
    leaf = built.call("a", None, [1, 2], [3, 4], **PLAIN)
    built.admit(leaf, 0)
    built.call("side", leaf, [5], [6], **PLAIN)
    tree = built.tree()
    train_tree(tree)
    change(tree)
    with pytest.raises((LookupError, ValueError)):
        train_tree(tree)


Target = tuple[tuple[int, ...], float, float, int]
"""Path up to and with it, log-probability, temperature, trajectory."""


def of_nodes(tree: TrainTree) -> Counter[Target]:
    found: Counter[Target] = Counter()
    paths: list[tuple[int, ...]] = []
    for node in tree.nodes:
        above = paths[node.parent] if node.parent >= 0 else ()
        ids = node.token_ids.tolist()
        paths.append((*above, *ids))
        if node.target is not None and node.target.logprobs is not None:
            for place, logprob in enumerate(node.target.logprobs.tolist(), start=1):
                path = (*above, *ids[:place])
                found[path, logprob, node.target.temperature, node.target.trajectory] += 1
    return found


def of_paths(tree: ExecutionTree) -> Counter[Target]:
    """The same from whole sequences with their masks, which are made in another way."""
    place = Place(ExecutionSummary(tree.execution_id), "g", 0, 0, 0, 1.0, 1.0)
    numbers = sorted(each.trajectory_id for each in tree.trajectories)
    found: Counter[Target] = Counter()
    for row in rows_of(place, tree):
        for at in np.flatnonzero(row.target_mask).tolist():
            path = tuple(row.token_ids[: at + 1].tolist())
            where = numbers.index(row.trajectory_id)
            found[path, float(row.logprobs[at]), float(row.temperatures[at]), where] += 1
    return found


@settings(deadline=None)
@given(st.lists(CALL, min_size=1, max_size=12), st.data())
def test_the_targets_are_those_of_the_kept_paths(calls: list[Any], data: st.DataObject) -> None:
    tree = grown(calls)
    heats = data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.5]), min_size=len(calls), max_size=len(calls)))
    for link, heat in zip(tree.links, heats, strict=True):
        link.temperature = heat
    found = train_tree(tree)
    assert of_nodes(found.tree) == of_paths(tree)
    assert found.tree.targets == tree.kept_targets
    assert found.longest == max((len(path) - 1 for path, *_ in of_paths(tree)), default=0)
    assert all(
        -1 <= node.parent < index and len(node.token_ids) for index, node in enumerate(found.tree.nodes)
    )
