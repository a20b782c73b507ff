"""A run whose scores say nothing any more."""

from __future__ import annotations

from gyre.trainer.live.warnings import PATIENCE, Alike
from tests.trainer.live.values import batch, trained

SAME = batch(trained(scores=(0.0, 0.0)), trained(scores=(0.0, 0.0)))
VARIED = batch(trained(scores=(0.0, 1.0)))


def test_equal_scores_are_told_after_some_batches_with_the_numbers() -> None:
    told: list[str] = []
    alike = Alike(told.append)
    for _ in range(PATIENCE - 1):
        alike.look(SAME)
    assert told == []
    alike.look(SAME)
    assert len(told) == 1 and f"{PATIENCE} batches" in told[0] and "all 4 of the last batch are 0" in told[0]


def test_a_group_with_two_scores_begins_the_count_anew() -> None:
    told: list[str] = []
    alike = Alike(told.append)
    for report in [SAME, SAME, VARIED, SAME, SAME]:
        alike.look(report)
    assert told == []


def test_groups_that_differ_from_each_other_and_not_within() -> None:
    told: list[str] = []
    alike = Alike(told.append)
    for _ in range(PATIENCE):
        alike.look(batch(trained(scores=(0.0, 0.0)), trained(scores=(1.0, 1.0))))
    assert "from group to group" in told[0]
