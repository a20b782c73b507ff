"""A batch whose groups come one after the other is trained as one that was there from the beginning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from gyre.trainer.settings import LossSettings, OptimizerSettings
from gyre.trainer.update.batch import deal
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.report import Skipped, UpdateReport
from tests.trainer.builders import Shape, context, random_trees, targets, tree
from tests.trainer.models import tiny_model
from tests.trainer.update.test_learner import LOSS, Rig, assert_same, recorded, replace_settings

SHAPE = Shape(executions=15, groups=5)
ADAM = OptimizerSettings(lr=1e-3, eps=1e-4, clip_norm=0.5)
"""With an `eps` beside which rounding of gradients is nothing."""


def groups(seed: int = 3, model: torch.nn.Module | None = None) -> list[list[TrainTree]]:
    """Six, sampled by the model. The third has nothing that can be trained, the fourth no variance."""
    trees = recorded(model or tiny_model(), [replace(one, attempt=0) for one in random_trees(seed, SHAPE)])
    found = [[one for one in trees if one.group == f"group-{group}"] for group in range(SHAPE.groups)]
    alike = [replace(one, advantage=0.0) for one in found[2]]
    return [*found[:2], [], alike, *found[3:]]


def rig(parts: int, loss: LossSettings = LOSS, wrap: Callable[[TreePass], TreePass] = lambda own: own) -> Rig:
    return Rig(replace_settings(updates_per_batch=parts, optimizer=ADAM, loss=loss), wrap=wrap)


def streamed(rig: Rig, batch: Sequence[Sequence[TrainTree]]) -> list[UpdateReport]:
    stream = rig.learner.stream(groups=len(batch))
    return [report for group in batch for report in stream.add(group)]


def at_once(rig: Rig, batch: Sequence[Sequence[TrainTree]]) -> list[UpdateReport]:
    begun = rig.learner.begin(batch)
    return [rig.learner.update(begun, part) for part in range(len(begun.parts))]


def assert_alike(found: Rig, wanted: Rig) -> None:
    for name, own in wanted.weights().items():
        assert float((found.weights()[name] - own).norm() / own.norm()) <= 1e-6, name


def numbers(report: UpdateReport) -> dict[str, float]:
    """Without time and memory, and without what groups that are computed together share."""
    apart = ("seconds/", "memory/", "tokens/")
    return {name: value for name, value in report.metrics().items() if not name.startswith(apart)}


# ------------------------------------------------------------------------------------------- the same updates


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_weights_and_reports_are_those_of_a_batch_that_was_there_at_once(parts: int) -> None:
    one, other, batch = rig(parts), rig(parts), groups()
    found, wanted = streamed(one, batch), at_once(other, batch)
    assert len(found) == parts
    assert_alike(one, other)
    for mine, theirs in zip(found, wanted, strict=True):
        assert numbers(mine) == pytest.approx(numbers(theirs), rel=1e-4, abs=1e-5)
        assert (mine.update, mine.skipped, mine.versions) == (theirs.update, theirs.skipped, theirs.versions)


def test_later_updates_are_compared_with_the_start_of_the_batch() -> None:
    one, batch = rig(6, LossSettings(clip_low=1e-4, clip_high=1e-4)), groups()
    reports = streamed(one, batch)
    first, last = reports[0].objective, reports[-1].objective
    assert first is not None and last is not None
    assert (first.ratio.min, first.ratio.max) == (1, 1)
    assert abs(last.execution_ratio.max - 1) > 1e-3
    assert last.clipped.executions_high + last.clipped.executions_low > 0


def test_with_a_reference_too() -> None:
    loss = LossSettings(kl=0.1, clip_low=0.05, clip_high=0.05)
    one, other, batch = rig(2, loss), rig(2, loss), groups()
    found, wanted = streamed(one, batch), at_once(other, batch)
    assert_alike(one, other)
    assert numbers(found[1]) == pytest.approx(numbers(wanted[1]), rel=1e-4, abs=1e-5)
    assert found[1].objective is not None and found[1].objective.kl_reference


def test_with_fewer_groups_than_updates_executions_are_dealt() -> None:
    one, other = rig(3), rig(3)
    batch = [groups()[0], groups()[1]]
    stream = one.learner.stream(groups=2)
    assert stream.add(batch[0]) == []
    found = stream.add(batch[1])
    assert [report.update for report in found] == [1, 2, 3]
    at_once(other, batch)
    assert_same(one.weights(), other.weights())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_groups_go_to_the_updates_that_they_are_dealt_to(sizes: list[int], parts: int) -> None:
    batch = [
        [tree(f"{group}-{index}", [context(-1, 1), targets(0, 2)], advantage=0.0) for index in range(size)]
        for group, size in enumerate(sizes)
    ]
    wanted = [len(part) for part in deal(batch, parts)] or [0]
    assert [report.executions for report in streamed(RESTING, with_parts(parts, batch))] == wanted


RESTING = Rig()
"""Whose batches have no variance, so that it never changes."""


def with_parts(parts: int, batch: list[list[TrainTree]]) -> list[list[TrainTree]]:
    RESTING.learner.settings = replace_settings(updates_per_batch=parts)
    return batch


# ------------------------------------------------------------------------------------------ one after another


def test_a_group_is_computed_when_it_comes_and_the_step_is_taken_with_the_last() -> None:
    one, batch = rig(1), groups()
    before = one.weights()
    stream = one.learner.stream(groups=3)
    assert stream.add(batch[0]) == []
    first = {name: own.grad.clone() for name, own in one.learner.parameters.items() if own.grad is not None}
    assert any(grad.norm() > 0 for grad in first.values())
    assert_same(one.weights(), before)
    assert stream.left == 2
    assert stream.add([]) == []
    (report,) = stream.add(batch[1])
    assert report.executions == len(batch[0]) + len(batch[1])
    assert all(own.grad is None for own in one.learner.parameters.values())
    with pytest.raises(ValueError, match="all 3 groups"):
        stream.add(batch[4])


def test_where_nobody_has_an_advantage_no_weight_changes() -> None:
    one = rig(2)
    streamed(one, groups())
    before, steps = one.weights(), {name: state.clone() for name, state in moments(one).items()}
    alike = [[replace(each, advantage=0.0) for each in group] for group in groups()]
    reports = streamed(one, alike)
    assert [report.skipped for report in reports] == [Skipped.NO_VARIANCE] * 2
    assert [report.no_variance for report in reports] == [1, 1]
    assert_same(one.weights(), before)
    assert_same(moments(one), steps)
    assert one.learner.progress.update == 4


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_batch_of_which_nothing_can_be_trained_is_counted(parts: int) -> None:
    one = rig(parts)
    before = one.weights()
    reports = streamed(one, [[], [], []])
    assert {report.skipped for report in reports} == {Skipped.NO_VARIANCE}
    assert one.learner.progress.update == len(reports) >= 1
    assert {(report.executions, report.rewards) for report in reports} == {(0, None)}
    assert_same(one.weights(), before)


def moments(rig: Rig) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{what}": value
        for name, own in rig.learner.parameters.items()
        for what, value in rig.learner.optimizer.state.get(own, {}).items()
    }


# -------------------------------------------------------------------------------------------- what goes wrong


class Disturbed:
    """Passes of a learner, before the next one of which something happens once."""

    def __init__(self) -> None:
        self.happens: list[Callable[[], None]] = []

    def wrap(self, own: TreePass) -> TreePass:
        def run(piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
            if self.happens:
                self.happens.pop()()
            return own(piece, temperature_K, loss)

        return run


def _full() -> None:
    raise MemoryError


@pytest.mark.parametrize("parts", [1, 2])
def test_a_full_memory_computes_anew_what_the_update_had_already(parts: int) -> None:
    disturbed = Disturbed()
    whole, halved, batch = rig(parts), rig(parts, wrap=disturbed.wrap), groups()
    streamed(whole, batch)
    stream = halved.learner.stream(groups=len(batch))
    done = [report for group in batch[:-1] for report in stream.add(group)]
    disturbed.happens.append(_full)
    (last,) = stream.add(batch[-1])
    assert (len(done), last.halved, last.token_budget) == (parts - 1, 1, 12)
    assert halved.budgets == [24, 12]
    assert_alike(halved, whole)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_stop_leaves_the_weights_as_they_were_before_the_update(parts: int) -> None:
    disturbed = Disturbed()
    one, batch = rig(parts, wrap=disturbed.wrap), groups()
    stream = one.learner.stream(groups=len(batch))
    done = [report for group in batch[:-1] for report in stream.add(group)]
    before = one.weights() if parts == 1 else after_first(batch)
    disturbed.happens.append(lambda: setattr(one, "stopping", True))
    with pytest.raises(Stopped):
        stream.add(batch[-1])
    assert_same(one.weights(), before)
    assert one.learner.progress.update == len(done) == parts - 1
    assert all(own.grad is None for own in one.learner.parameters.values())


def after_first(batch: Sequence[Sequence[TrainTree]]) -> dict[str, torch.Tensor]:
    """Weights after the first of two updates."""
    one = rig(2)
    stream = one.learner.stream(groups=len(batch))
    for group in batch[: len(batch) // 2]:
        stream.add(group)
    return one.weights()


def test_what_is_not_finite_is_skipped_and_counted() -> None:
    def wrap(own: TreePass) -> TreePass:
        def run(piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
            out = own(piece, temperature_K, loss)
            return replace(out, loss=math.nan) if loss else out

        return run

    one = rig(1, wrap=wrap)
    before = one.weights()
    (report,) = streamed(one, groups())
    assert report.skipped is Skipped.NOT_FINITE
    assert one.learner.progress.bad_in_a_row == 1
    assert_same(one.weights(), before)


def test_groups_of_another_model_are_told_before_the_first_step() -> None:
    one = rig(1)
    before = one.weights()
    with pytest.raises(TrainError, match="sampled by another model"):
        streamed(one, groups(model=tiny_model(seed=3)))
    assert_same(one.weights(), before)
    assert all(own.grad is None for own in one.learner.parameters.values())
