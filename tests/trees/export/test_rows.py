"""Masks that count each target once, whatever the tree and the format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.rows import Row, places, rows_of
from gyre.treebuilder.export.source import Format
from gyre.treebuilder.trees import ExecutionTree, Role
from tests.trees.export.builders import Folder, TreeBuilder, branching, usual
from tests.trees.export.load import ROWS, load, trained

CALL = st.tuples(
    st.integers(0, 8), st.integers(0, 3), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans()
)


def grown(calls: list[tuple[int, int, int, bool, bool, bool]]) -> ExecutionTree:
    """A tree in which every token is another one, so that a token names its place."""
    built = TreeBuilder("e")
    numbers = itertools.count()
    leaves: list[int] = []
    for place, (under, new, output, target, admit, stub) in enumerate(calls):
        parent = leaves[under % len(leaves)] if leaves and under else None
        given_ids = list(itertools.islice(numbers, new if parent is not None else new + 1))
        drawn = list(itertools.islice(numbers, output))
        role = Role.SUB if place % 3 == 2 else Role.MAIN
        leaves.append(built.call(f"c{place}", parent, given_ids, drawn, place, role, target=target))
        if admit:
            built.admit(leaves[-1], place, stub)
    return built.tree()


def rows(tree: ExecutionTree) -> list[Row]:
    folder = Folder()
    folder.add(tree, score=1.0)
    found, _ = places(folder.executions(), folder.advantages())
    return list(rows_of(found[tree.execution_id, 0], tree)) if found else []


def kept(tree: ExecutionTree) -> Iterator[int]:
    for node in tree.nodes:
        if node.target and node.admitted:
            yield from node.token_ids.tolist()


@given(st.lists(CALL, min_size=1, max_size=12))
def test_each_kept_target_is_trained_by_exactly_one_row(
    calls: list[tuple[int, int, int, bool, bool, bool]],
) -> None:
    tree = grown(calls)
    found = rows(tree)
    assert sorted(t for row in found for t in row.token_ids[row.target_mask].tolist()) == list(kept(tree))
    assert sum(row.target_mask.sum() * row.weight for row in found) == pytest.approx(float(bool(found)))
    for row in found:
        assert not (row.target_mask & ~row.full_mask).any()
        assert np.isfinite(row.logprobs[row.full_mask]).all()
    assert [row.last for row in found] == [False] * (len(found) - 1) + [True] * bool(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(calls=st.lists(CALL, min_size=1, max_size=10))
@pytest.mark.parametrize("fmt", ROWS)
def test_every_format_trains_each_kept_target_once(
    fmt: Format, calls: list[tuple[int, int, int, bool, bool, bool]], tmp_path: Path
) -> None:
    tree = grown(calls)
    folder = Folder()
    folder.add(tree, score=1.0)
    report = export_trees(folder, fmt, tmp_path / "out", force=True)
    drawn = [token for row in load(fmt, tmp_path / "out") for token, _ in trained(fmt, row)]
    assert sorted(drawn) == list(kept(tree))
    assert report.targets == len(drawn) == tree.kept_targets


@pytest.mark.parametrize("fmt", ROWS)
def test_tokens_and_logprobs_stay_together(fmt: Format, tmp_path: Path) -> None:
    folder = Folder()
    folder.add(branching(), score=1.0)
    export_trees(folder, fmt, tmp_path / "out")
    found = dict(pair for row in load(fmt, tmp_path / "out") for pair in trained(fmt, row))
    assert found == {
        10: -0.25,
        11: -0.5,
        14: -0.25,
        15: -0.5,
        12: -0.25,
        13: -0.5,
        30: -0.25,
        31: -0.5,
        32: -0.75,
    }


def test_a_shared_target_belongs_to_the_first_path_by_number_wherever_its_row_stands() -> None:
    by_number = {row.trajectory_id: row for row in rows(branching())}
    assert list(by_number) == [1, 2, 0]
    assert by_number[0].token_ids[by_number[0].target_mask].tolist() == [10, 11, 14, 15]
    assert by_number[1].token_ids[by_number[1].target_mask].tolist() == [12, 13]
    assert by_number[1].token_ids[by_number[1].full_mask].tolist() == [10, 11, 12, 13]


def test_the_path_on_which_the_main_agent_stopped_comes_last() -> None:
    built = TreeBuilder("e")
    first = built.call("a", None, [1], [2])
    after = built.call("b", None, [3], [4], context=1)
    sub = built.call("c", None, [5], [6], context=2, role=Role.SUB)
    for slot, leaf in enumerate((after, first, sub)):
        built.admit(leaf, slot)
    assert [row.trajectory_id for row in rows(built.tree())] == [1, 2, 0]


def test_versions_that_go_on_across_nodes_are_one_span() -> None:
    built = TreeBuilder("e")
    a = built.call("a", None, [1], [2, 3], versions=[("7", 0, 2)])
    b = built.call("b", a, [], [4, 5], versions=[("7", 0, 1), ("8", 1, 2)])
    built.admit(b, 0)
    [row] = rows(built.tree())
    assert row.versions == [("7", 1, 4), ("8", 4, 5)]


def test_a_row_has_the_temperature_of_what_it_trains_if_there_is_one() -> None:
    by_number = {row.trajectory_id: row for row in rows(branching())}
    assert [by_number[number].temperature for number in range(3)] == [None, 0.7, 0.5]
    assert by_number[1].temperatures[-2:].tolist() == [0.7, 0.7]
    assert np.isnan(by_number[1].temperatures[:-2]).all()


@pytest.mark.parametrize(("other", "expected"), [(0.7, 0.7), (0.8, None), (None, None)])
def test_a_temperature_that_is_not_known_is_no_temperature(
    other: float | None, expected: float | None
) -> None:
    built = TreeBuilder("e")
    a = built.call("a", None, [1], [2], temperature=0.7)
    built.admit(built.call("b", a, [3], [4], temperature=other), 0)
    [row] = rows(built.tree())
    assert row.temperature == expected


def test_a_path_that_trains_nothing_has_no_temperature() -> None:
    tree = branching()
    tree.nodes[5].target = False
    assert [row.temperature for row in rows(tree)] == [None, 0.5, None]


def test_groups_are_numbered_and_a_task_is_no_group_of_that_name() -> None:
    folder = usual()
    found, _ = places(folder.executions(), folder.advantages())
    assert [(p.group_id, p.group_index, p.repetition, p.rollout_index) for p in found.values()] == [
        ("g", 0, 0, 0),
        ("g", 0, 1, 1),
        ("h_1", 1, 0, 2),
        ("h_1", 1, 1, 3),
        ("task:t2", 2, 0, 4),
        ("k", 3, 0, 5),
    ]
