"""The learning rate of each update."""

from __future__ import annotations

import pytest

from gyre.trainer.settings import OptimizerSettings, Schedule
from gyre.trainer.update.schedule import lr_at


def rates(total: int, warmup: int, schedule: Schedule) -> list[float]:
    settings = OptimizerSettings(lr=1.0, warmup_updates=warmup, schedule=schedule)
    return [lr_at(update, settings, total) for update in range(total)]


def test_constant_is_constant_after_the_warm_up() -> None:
    assert rates(5, 2, Schedule.CONSTANT) == [0.5, 1, 1, 1, 1]
    assert rates(3, 0, Schedule.CONSTANT) == [1, 1, 1]


def test_linear_would_be_zero_after_the_last_update() -> None:
    assert rates(4, 0, Schedule.LINEAR) == [1, 0.75, 0.5, 0.25]
    assert rates(6, 2, Schedule.LINEAR) == [0.5, 1, 1, 0.75, 0.5, 0.25]


def test_cosine_is_at_half_in_the_middle() -> None:
    found = rates(4, 0, Schedule.COSINE)
    assert found == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_an_update_beyond_the_last_has_a_rate_of_zero_and_not_less() -> None:
    settings = OptimizerSettings(lr=1.0, schedule=Schedule.LINEAR)
    assert [lr_at(update, settings, 2) for update in (2, 3, 10)] == [0, 0, 0]


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    assert rates(2, 4, Schedule.COSINE) == [0.25, 0.5]
