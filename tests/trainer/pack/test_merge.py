"""All executions of a batch in one forest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.data.tree import TrainNode
from gyre.trainer.pack.check import check_piece
from gyre.trainer.pack.merge import merge
from tests.trainer.builders import Shape, context, random_trees, sampled, targets, tree
from tests.trainer.pack.whole import before, computed, same, wanted

seeds = st.integers(0, 10**6)
shapes = st.builds(
    Shape,
    executions=st.integers(1, 5),
    nodes=st.integers(2, 9),
    longest=st.sampled_from([1, 2, 5, 20]),
    roots=st.integers(1, 3),
    vocab=st.sampled_from([2, 3, 97]),
)


@settings(deadline=None, max_examples=60)
@given(seeds, shapes)
def test_every_target_has_its_own_path_before_it(seed: int, shape: Shape) -> None:
    trees = random_trees(seed, shape)
    forest = merge(trees).forest
    check_piece(forest)
    assert computed(forest) == dict(enumerate(wanted(trees)))


@settings(deadline=None, max_examples=60)
@given(seeds, shapes)
def test_no_beginning_is_there_twice_and_nothing_that_no_target_needs(seed: int, shape: Shape) -> None:
    trees = random_trees(seed, shape)
    forest = merge(trees).forest
    tokens = [before(forest, index) for index in range(len(forest))]
    needed = {path[:end] for path in wanted(trees) for end in range(1, len(path))}
    assert len(tokens) == len(set(tokens)) and set(tokens) == needed
    assert tokens == sorted(tokens)


@settings(deadline=None, max_examples=60)
@given(seeds, shapes)
def test_what_the_loss_needs_of_each_target(seed: int, shape: Shape) -> None:
    trees = random_trees(seed, shape)
    known = merge(trees).targets
    assert len(known) == sum(tree.targets for tree in trees)
    for index, (own, node, token) in enumerate(sampled(trees)):
        run = own.nodes[node].target
        assert run is not None
        execution = int(known.execution_T[index])
        assert known.executions[execution].split("#")[0] == own.execution_id
        assert known.advantage_T[index] == own.advantage
        assert known.weight_T[index] == 1 / own.targets
        assert known.temperature_T[index] == np.float32(run.temperature)
        firsts = sum(tree.trajectories for tree in trees[:execution])
        assert known.trajectory_T[index] == firsts + run.trajectory
        version = next((name for name, start, end in run.versions if start <= token < end), None)
        at = int(known.version_T[index])
        assert (known.versions[at] if at >= 0 else None) == version
        if run.logprobs is None or not run.comparable:
            assert np.isnan(known.behaviour_T[index])
        else:
            assert known.behaviour_T[index] == run.logprobs[token]


@settings(deadline=None, max_examples=40)
@given(seeds, shapes)
def test_weights_of_an_execution_sum_to_one(seed: int, shape: Shape) -> None:
    trees = random_trees(seed, shape)
    known = merge(trees).targets
    assert known.trajectories == sum(tree.trajectories for tree in trees)
    assert np.bincount(known.execution_T, weights=known.weight_T) == pytest.approx(np.ones(len(trees)))


@settings(deadline=None, max_examples=40)
@given(seeds, shapes, st.randoms(use_true_random=False))
def test_the_order_of_trees_changes_numbers_of_targets_only(seed: int, shape: Shape, random: object) -> None:
    trees = random_trees(seed, shape)
    order = np.random.default_rng(seed).permutation(len(trees))
    one, other = merge(trees).forest, merge([trees[index] for index in order]).forest
    assert same(one, other)
    assert sorted(computed(one).values()) == sorted(computed(other).values())


def test_what_is_sampled_twice_at_one_place_are_two_targets_of_one_token() -> None:
    prompt = context(-1, 5, 6)
    packed = merge([tree("a", [prompt, targets(0, 7, 8)]), tree("b", [prompt, targets(0, 7, 9)])])
    forest = packed.forest
    assert forest.input_ids_N.tolist() == [5, 6, 7]
    assert forest.source_K.tolist() == [1, 1, 2, 2]
    assert forest.label_K.tolist() == [7, 7, 8, 9]
    assert forest.target_K.tolist() == [0, 2, 1, 3]


def test_a_branch_begins_in_the_middle_of_a_node_of_another_execution() -> None:
    first = tree("a", [context(-1, 1, 2, 3, 4), targets(0, 5, 6)])
    second = tree("b", [context(-1, 1, 2), targets(0, 9, 3), targets(1, 1)])
    forest = merge([first, second]).forest
    assert forest.input_ids_N.tolist() == [1, 2, 3, 4, 5, 9, 3]
    assert forest.parent_N.tolist() == [-1, 0, 1, 2, 3, 1, 5]
    assert forest.tout_N.tolist() == [7, 7, 5, 5, 5, 7, 7]
    assert forest.position_ids_N.tolist() == [0, 1, 2, 3, 4, 2, 3]


def test_tails_without_targets_are_left_out() -> None:
    nodes = [context(-1, 1, 2), targets(0, 3), context(1, 4, 5), context(0, 6), context(-1, 7)]
    assert merge([tree("a", nodes)]).forest.input_ids_N.tolist() == [1, 2]


def test_an_attempt_is_part_of_the_name_and_executions_without_targets_are_none() -> None:
    trained = [context(-1, 1), targets(0, 2)]
    batch = [tree("a", trained), tree("b", [context(-1, 1)]), tree("a", trained, attempt=2)]
    known = merge(batch).targets
    assert known.executions == ("a", "a#2")
    assert known.execution_T.tolist() == [0, 1]
    assert known.trajectory_T.tolist() == [0, 1] and known.trajectories == 2


def test_versions_are_numbered_as_they_come_and_unknown_ones_have_none() -> None:
    spans = (("9", 0, 1), ("4", 2, 3))
    known = merge([tree("a", [context(-1, 1), targets(0, 2, 3, 4, versions=spans)])]).targets
    assert known.versions == ("9", "4") and known.version_T.tolist() == [0, -1, 1]


def test_log_probabilities_that_may_not_be_compared_are_not_there() -> None:
    lost = targets(0, 2)
    assert lost.target is not None
    nodes = [
        context(-1, 1),
        replace(lost, target=replace(lost.target, logprobs=None)),
        targets(0, 3, comparable=False),
        targets(0, 4, logprobs=[-0.5]),
    ]
    behaviour = merge([tree("a", nodes)]).targets.behaviour_T
    assert behaviour.dtype == np.float32
    assert np.isnan(behaviour).tolist() == [True, True, False] and behaviour[2] == -0.5


def test_nothing_makes_an_empty_forest() -> None:
    packed = merge([])
    check_piece(packed.forest)
    assert len(packed.forest) == len(packed.targets) == packed.targets.trajectories == 0


def test_a_target_that_nothing_predicts_is_refused() -> None:
    root: TrainNode = targets(-1, 1, 2)
    with pytest.raises(ValueError, match="first token of a root"):
        merge([tree("a", [root])])
