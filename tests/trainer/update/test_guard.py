"""What engines recorded under a version is held against the weights of that name, before these change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.pack.merge import merge
from gyre.trainer.passes.dfs import DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import TreePass
from gyre.trainer.settings import OptimizerSettings
from gyre.trainer.update.guard import Guard, sampled_by
from gyre.trainer.update.learner import Learner, Progress
from gyre.trainer.update.network import Network
from gyre.trainer.update.report import Skipped
from tests.trainer.builders import context, random_trees, targets, tree
from tests.trainer.models import tiny_model
from tests.trainer.update.test_learner import assert_same, recorded, replace_settings

EXACT = 1e-4


def learner(
    max_gap: float | None = EXACT,
    *,
    seed: int = 0,
    noise: float = 0.0,
    make: Callable[[Policy], TreePass] = FlatPass,
) -> Learner:
    """Of the model that `sampled` are of; `noise` on its weights makes it another checkpoint."""
    policy = Policy(tiny_model(seed=seed))
    with torch.no_grad():
        for own in policy.model.parameters():
            own.mul_(1 + noise)
    settings = replace_settings(token_budget=1000, optimizer=OptimizerSettings(lr=1e-2))
    network = Network(policy=policy, make=lambda _: make(policy))
    return Learner(network, settings, total_updates=9, max_gap=max_gap)


def sampled(version: str = "3", off: float = 0.0) -> list[TrainTree]:
    """By the model, under this version; the last log-probability is recorded wrong by so much."""
    trees = [with_version(one, version) for one in recorded(tiny_model(), random_trees(3))]
    *rest, last = trees
    node = next(each for each in reversed(last.nodes) if each.target and each.target.comparable)
    assert node.target is not None and node.target.logprobs is not None
    wrong = node.target.logprobs.copy()
    wrong[-1] += off
    nodes = [
        replace(each, target=replace(node.target, logprobs=wrong)) if each is node else each
        for each in last.nodes
    ]
    return [*rest, replace(last, nodes=nodes)]


def with_version(one: TrainTree, version: str) -> TrainTree:
    nodes = [
        replace(node, target=replace(node.target, versions=((version, 0, len(node.token_ids)),)))
        if node.target
        else node
        for node in one.nodes
    ]
    return replace(one, nodes=nodes)


def update(learner: Learner, trees: Sequence[TrainTree]) -> Skipped:
    return learner.update(learner.begin([trees]), 0).skipped


def assert_refused(learner: Learner, trees: Sequence[TrainTree], match: str) -> None:
    before = learner.weights()
    with pytest.raises(TrainError, match=match) as caught:
        update(learner, trees)
    assert "--resume" in caught.value.hint
    assert_same(learner.weights(), before)


@pytest.mark.parametrize("make", [FlatPass, PackedPass, lambda policy: DfsPass(policy, budget=12)])
def test_the_same_weights_agree_however_trees_are_packed(make: Callable[[Policy], TreePass]) -> None:
    own = learner(make=make)
    own.served_as("3")
    assert update(own, sampled()) is Skipped.NO
    assert own.compared is not None
    assert own.compared.version == "3"
    assert own.compared.targets > 10
    assert 0 < own.compared.mean < own.compared.max < EXACT


def test_another_checkpoint_is_told_with_the_gap_also_where_it_is_a_near_one() -> None:
    own = learner(noise=1e-3)
    own.served_as("3")
    assert_refused(own, sampled(), r"sampled as version `3` .* by up to 0\.\d+ nats.*0\.0001 for any")


def test_a_single_log_probability_counts() -> None:
    near, far = learner(), learner()
    near.served_as("3")
    far.served_as("3")
    assert update(near, sampled(off=0.5e-4)) is Skipped.NO
    assert_refused(far, sampled(off=2e-4), r"up to 0\.0002 nats")


def test_engines_that_compute_otherwise_are_only_held_to_the_mean() -> None:
    own, other = learner(None), learner(None, seed=3)
    own.served_as("3")
    other.served_as("3")
    assert update(own, sampled(off=0.5)) is Skipped.NO
    assert_refused(other, sampled(), r"; 1 on average is allowed")


def test_what_agreed_once_is_held_to_the_mean_from_then_on() -> None:
    """A run of days is not to end for a rounding."""
    guard = Guard(EXACT)
    nodes = [context(-1, 1, 2), targets(0, 6, 7, versions=(("2", 0, 2),))]
    packed = merge([tree("a", nodes)])
    recorded = packed.targets.behaviour_T.astype(np.float32)
    guard.served_as("2")
    guard.check([packed.targets], [recorded])
    guard.served_as("2")
    guard.check([packed.targets], [recorded + np.float32(1e-2)])
    assert guard.compared is not None and guard.compared.max == pytest.approx(1e-2, rel=1e-3)


def test_a_run_that_goes_on_is_compared_again() -> None:
    own = learner(noise=1e-3)
    own.go_on_from(Progress(update=5, token_budget=1000))
    own.served_as("3")
    assert_refused(own, sampled(), "sampled as version `3`")


def test_other_versions_do_not_count() -> None:
    own = learner(noise=1e-3)
    own.served_as("4")
    assert update(own, sampled()) is Skipped.NO
    assert own.compared is None


def test_once_the_weights_have_changed_there_is_nothing_to_compare() -> None:
    own = learner()
    own.served_as("3")
    update(own, sampled())
    assert update(own, sampled()) is Skipped.NO
    own.served_as("3")
    with pytest.raises(TrainError, match="sampled as version `3`"):
        update(own, sampled())


def test_an_update_without_variance_compares_nothing_and_the_next_one_does() -> None:
    own = learner(noise=1e-3)
    own.served_as("3")
    assert update(own, [replace(one, advantage=0.0) for one in sampled()]) is Skipped.NO_VARIANCE
    assert_refused(own, sampled(), "sampled as version `3`")


def test_all_groups_of_an_update_are_compared() -> None:
    own, trees = learner(), sampled(off=2e-4)
    own.served_as("3")
    stream = own.stream(groups=2)
    stream.add(trees[:2])
    with pytest.raises(TrainError, match="sampled as version `3`"):
        stream.add(trees[2:])


# ------------------------------------------------------------------------------------- which executions count


def test_an_execution_of_two_versions_does_not_count_at_all() -> None:
    """After the publication its keys and values may be of the weights before."""
    nodes = [context(-1, 1, 2), targets(0, 3, 4, versions=(("1", 0, 1), ("2", 1, 2))), targets(1, 5)]
    nodes[2] = targets(1, 5, versions=(("2", 0, 1),))
    pure = [context(-1, 1, 2), targets(0, 6, 7, versions=(("2", 0, 2),))]
    unknown = [context(-1, 1, 2), targets(0, 8, versions=(("2", 0, 1),)), targets(1, 9)]
    unknown[2] = replace(unknown[2], target=replace(unknown[2].target, versions=()))  # type: ignore[arg-type]
    packed = merge([tree("mixed", nodes), tree("pure", pure), tree("unknown", unknown)])
    assert sampled_by(packed.targets, "2").tolist() == [False] * 3 + [True] * 2 + [False] * 2
    assert not sampled_by(packed.targets, "9").any()


def test_without_log_probabilities_there_is_nothing_to_compare() -> None:
    nodes = [context(-1, 1, 2), targets(0, 6, 7, versions=(("2", 0, 2),), comparable=False)]
    packed, guard = merge([tree("a", nodes)]), Guard(EXACT)
    guard.served_as("2")
    guard.check([packed.targets], [np.zeros(2, np.float32)])
    assert guard.compared is None
