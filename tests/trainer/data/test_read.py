"""Which executions of a folder are trained, in which groups, and what is said where that is impossible."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gyre.proxy.calls import Sampling
from gyre.trainer.data.convert import Lacks, train_tree
from gyre.trainer.data.read import TrainData, read_groups
from gyre.trainer.data.stored import Worth
from gyre.trainer.errors import TrainError
from gyre.trainer.settings import Importance, LossSettings, TrainSettings
from gyre.treebuilder import read_trees
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.score import Advantage
from gyre.treebuilder.store.folder import MANIFEST
from gyre.treebuilder.trees import ExecutionTree, Role
from tests.log.builders import LogBuilder
from tests.trainer.data.folders import PLAIN, one_call, pair, stored
from tests.trees.export.builders import Folder, TreeBuilder, branching, usual
from tests.trees.store.logs import build, damage, forget, write_some

SETTINGS = TrainSettings()
NO_IMPORTANCE = TrainSettings(loss=LossSettings(importance=Importance.OFF))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "trees"


def names(data: TrainData) -> dict[str, list[str]]:
    return {group.name: [member.name for member in group.members] for group in data.groups}


def test_executions_stand_in_the_groups_that_compare_them(out: Path) -> None:
    data = read_groups(stored(out, usual()), SETTINGS)
    assert names(data) == {
        "g": ["good", "late"],
        "h_1": ["same1", "same2"],
        "task:t2": ["none"],
        "k": ["again#1"],
    }
    good, late = data.groups[0].members
    assert good.worth.advantage == pytest.approx(0.5 / (np.sqrt(0.5) + 1e-4))
    assert late.worth == Worth("g", 0.0, -good.worth.advantage)
    assert [group.varies for group in data.groups] == [True, False, False, False]
    assert (good.targets, good.tokens, good.longest, good.largest_id) == (9, 17, 8, 32)


def test_the_census_counts_who_is_left_out_and_what_targets_lack(out: Path) -> None:
    folder = usual()
    folder.add(one_call("idle"), group="g", score=1.0)
    folder.pairs[-1][0].kept_targets = 0
    census = read_groups(stored(out, folder), SETTINGS).census
    assert (census.executions, census.trained, census.groups, census.alike) == (14, 6, 4, 3)
    assert census.left_out == {
        "no_score": 1, "evaluation": 1, "run_timeout": 1, "scorer_failed": 1, "superseded": 1,
        "not_exact": 1, "skipped": 1, "no_targets": 1,
    }  # fmt: skip
    assert (census.targets, census.tokens) == (9 + 3 + 2 * 4, 17 + 6 + 5 * 4)
    # Of `branching` it is known with which temperature, and no more.
    assert census.lacks == Lacks(comparable=20, temperature=11)


def test_who_is_not_trained_for_want_of_targets_counts_in_the_mean(out: Path) -> None:
    folder = pair("a", "b", "c")
    folder.pairs[2][0].kept_targets = 0
    data = read_groups(stored(out, folder), TrainSettings(advantage=Advantage.CENTERED))
    assert [member.worth.advantage for member in data.members] == [-1.0, 0.0]


def test_an_execution_whose_only_target_nothing_predicts_has_none(out: Path) -> None:
    built = TreeBuilder("root")
    built.admit(built.call("a", None, [], [4], **PLAIN), 0)
    folder = pair("a", "b")
    folder.add(built.tree(), group="g", score=0.5)
    data = read_groups(stored(out, folder), SETTINGS)
    assert names(data) == {"g": ["a", "b"]}
    assert data.census.left_out == {"no_targets": 1}


@pytest.mark.parametrize(
    ("how", "expected"),
    [(Advantage.CENTERED, [-1.0, 0.0, 1.0]), (Advantage.LEAVE_ONE_OUT, [-1.5, 0.0, 1.5])],
)
def test_advantages_are_of_the_kind_that_was_chosen(out: Path, how: Advantage, expected: list[float]) -> None:
    data = read_groups(stored(out, pair("a", "b", "c")), TrainSettings(advantage=how))
    assert [member.worth.advantage for member in data.members] == pytest.approx(expected)
    assert [tree.advantage for tree in data.trees(data.groups)] == pytest.approx(expected)


def test_trees_come_in_the_order_of_the_groups_that_are_asked_for(out: Path) -> None:
    parts = pair("a", "b", group="x"), pair("c", "d", group="y"), pair("e", "f", group="x")
    parts[1].add(branching("g"), group="z", score=1.0)
    data = read_groups(read_trees(stored(out, *parts)), SETTINGS)
    assert names(data) == {"x": ["a", "b", "e", "f"], "y": ["c", "d"], "z": ["g"]}
    x, y, z = data.groups
    assert [tree.execution_id for tree in data.trees([z, x])] == ["g", "a", "b", "e", "f"]
    assert data.trees([]) == []
    [*_, last] = data.trees([y, z])
    expected = train_tree(branching("g"), group="z", reward=1.0).tree
    assert [node.token_ids.tolist() for node in last.nodes] == [
        node.token_ids.tolist() for node in expected.nodes
    ]
    assert (last.group, last.reward, last.targets) == ("z", 1.0, 9)


def test_trees_keep_nothing_in_memory_but_themselves(out: Path) -> None:
    data = read_groups(stored(out, pair("a", "b")), SETTINGS)
    nodes = [node for tree in data.trees(data.groups) for node in tree.nodes]
    assert all(node.token_ids.base is None for node in nodes)
    runs = [node.target for node in nodes if node.target]
    assert runs and all(run.logprobs is not None and run.logprobs.base is None for run in runs)


def test_a_log_that_was_scored_is_trained(tmp_path: Path, out: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    write_some(log)
    worker = log.worker("plain")
    for number, sampling in enumerate([Sampling(0.5, 1.0), Sampling(1.0, 0.9)]):
        name = f"p{number}"
        worker.call(name, execution=name, sampling=sampling)
        worker.event("scored", execution=name, score=float(number), group="p")
    worker.close()
    build(log, out)
    data = read_groups(out, SETTINGS)
    assert names(data) == {"g0": ["a", "c", "e"], "g1": ["b", "d", "f"], "p": ["p0", "p1"]}
    runs = [node.target for tree in data.trees([data.groups[2]]) for node in tree.nodes if node.target]
    assert [(run.temperature, run.comparable) for run in runs] == [(0.5, True), (1.0, False)]


def test_trees_of_an_earlier_gyre_are_trained_without_comparing(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget(stored(out, pair("a", "b")), "links", "logprob_quality", "sampling")
    data = read_groups(out, SETTINGS)
    assert data.census.lacks == Lacks(comparable=4)
    assert "4 of 4 targets" in caplog.text and "earlier gyre" in caplog.text
    caplog.clear()
    read_groups(out, NO_IMPORTANCE)
    assert not caplog.records


# What cannot be trained, and what is said.


def put(**values: Any) -> Callable[[Path], object]:
    """A change of the manifest."""

    def change(out: Path) -> None:
        told = json.loads((out / MANIFEST).read_text())
        (out / MANIFEST).write_text(json.dumps(told | values))

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (put(format=2), "tree format 2"),
        (put(complete=False), "did not finish"),
        (lambda out: (out / MANIFEST).unlink(), "is no folder of trees"),
        (shutil.rmtree, "is no folder of trees"),
        (lambda out: damage(out / "nodes" / "part-00000.parquet", "length"), "is damaged or was changed"),
        (lambda out: damage(out / "executions" / "part-00000.parquet", "score"), "is damaged or was changed"),
    ],
)
def test_a_folder_that_is_none_is_told_as_everywhere(
    out: Path, change: Callable[[Path], object], text: str
) -> None:
    change(stored(out, pair("a", "b")))
    with pytest.raises(TreeError, match=text):
        read_groups(out, SETTINGS)


def of(**summary: Any) -> Folder:
    return pair("a", "b", **summary)


@pytest.mark.parametrize(
    ("folder", "text", "hint"),
    [
        (Folder(), "there are no executions in", "gyre proxy"),
        (of(score=None), "of 2 executions in .* none can be trained: 2 without a score", "gyre log score"),
        (of(evaluation=True), "none can be trained: 2 of an evaluation", "gyre-trees show"),
        (of(exact=False), "none can be trained: 2 built from texts", "gyre-trees show"),
        (of(score=1.0), "nothing to learn .* all rewards of a group are equal", "more executions"),
        (of(group=None), "nothing to learn .* no execution has another to be compared", "--group"),
    ],
)
def test_where_there_is_nothing_to_train_it_is_said_why(
    out: Path, folder: Folder, text: str, hint: str
) -> None:
    stored(out, folder)
    with pytest.raises(TrainError, match=text) as caught:
        read_groups(out, SETTINGS)
    assert hint in caught.value.hint


def test_an_empty_build_has_no_executions(tmp_path: Path, out: Path) -> None:
    build(LogBuilder(tmp_path / "logs"), out)
    with pytest.raises(TrainError, match="there are no executions"):
        read_groups(out, SETTINGS)


def test_equal_rewards_are_no_obstacle_where_a_divergence_is_trained(out: Path) -> None:
    data = read_groups(stored(out, of(score=1.0)), TrainSettings(loss=LossSettings(kl=0.1)))
    assert (data.census.groups, data.census.alike) == (1, 1)


def test_targets_without_log_probabilities_are_named(out: Path) -> None:
    folder = pair("a", "b", "c", "d", "e")
    for _, tree in folder.pairs[1:]:
        assert tree
        tree.nodes[1].logprobs = None
    stored(out, folder)
    with pytest.raises(TrainError, match="targets of `b`, `c`, `d` and 1 more have no") as caught:
        read_groups(out, SETTINGS)
    assert 'importance = "off"' in caught.value.hint
    data = read_groups(out, NO_IMPORTANCE)
    assert data.census.lacks == Lacks(logprobs=8)
    runs = [node.target for tree in data.trees(data.groups) for node in tree.nodes if node.target]
    assert [run.logprobs is None for run in runs] == [False, True, True, True, True]


def lost(tree: ExecutionTree) -> None:
    tree.nodes[1].depth = 7


def of_another_world(tree: ExecutionTree) -> None:
    tree.nodes[0].role = cast(Role, "gardener")


@pytest.mark.parametrize("spoil", [lost, of_another_world])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_one_damaged_execution_costs_no_other(
    out: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[ExecutionTree], None], number: int
) -> None:
    folder = pair("a", "b", "c", "d")
    tree = folder.pairs[number][1]
    assert tree
    spoil(tree)
    data = read_groups(stored(out, folder, pair("e", "f", group="h")), SETTINGS)
    others = [name for name in "abcd" if name != tree.execution_id]
    assert names(data) == {"g": others, "h": ["e", "f"]}
    assert data.census.left_out == {"damaged": 1}
    assert f"execution {tree.execution_id} (attempt 0) is not trained, it is damaged" in caplog.text
    assert [one.execution_id for one in data.trees(data.groups)] == [*others, "e", "f"]


@pytest.mark.parametrize("table", ["nodes", "links", "trajectories"])
def test_a_damaged_file_costs_the_executions_that_it_holds(
    out: Path, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    stored(out, pair("a", "b", group="x"), pair("c", "d", group="y"))
    damage(out / table / "part-00001.parquet", "execution_id")
    with caplog.at_level(logging.WARNING):
        data = read_groups(out, SETTINGS)
    assert names(data) == {"x": ["a", "b"]}
    assert data.census.left_out == {"damaged": 2}
    assert "2 executions of part-00001 are not trained" in caplog.text


def test_what_is_damaged_while_it_is_trained_is_left_out_then(out: Path) -> None:
    parts = pair("a", "b", group="x"), pair("c", "d", group="y")
    data = read_groups(stored(out, *parts), SETTINGS)
    damage(out / "nodes" / "part-00001.parquet", "length")
    assert [tree.execution_id for tree in data.trees(data.groups)] == ["a", "b"]
    with pytest.raises(TreeError, match="cannot be read"):
        data.trees(data.groups[1:])
