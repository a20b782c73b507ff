"""Figures of an update, worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch

from gyre.trainer.gspo import Objective
from gyre.trainer.gspo_report import LossReport
from gyre.trainer.pack.piece import Targets
from gyre.trainer.settings import ClipLevel, Importance, LossSettings
from tests.trainer.losses import CPU, batch


def report(
    of: Targets,
    loss: LossSettings,
    now: Sequence[float],
    old: Sequence[float] | None,
    reference: Sequence[float] | None = None,
) -> LossReport:
    now_T = torch.tensor(now)
    objective = Objective.of(
        of,
        loss,
        old_T=None if old is None else torch.tensor(old),
        now_T=now_T,
        reference_T=None if reference is None else torch.tensor(reference),
        device=CPU,
    )
    return objective.report(now_T.requires_grad_())


def test_the_first_update_of_a_batch_is_where_the_policy_was() -> None:
    found = report(batch([1.0, 1.0], [-1.0]), LossSettings(), [-1.0, -2.0, -3.0], None)

    assert set(found.metrics().values()) == {0.0, 1.0}
    assert found.kl_old == 0 and found.ratio.max == found.execution_ratio.min == 1
    assert found.behaviour is None and found.uncomparable == 1


def test_ratios_by_hand() -> None:
    """Log-ratios 0.1, 0.2, 0.3 and, of another execution, -0.4: s = e^0.2 and e^-0.4."""
    found = report(batch([1.0] * 3, [1.0]), LossSettings(), [-0.9, -0.8, -0.7, -1.4], [-1.0] * 4)

    assert (found.ratio.min, found.ratio.max) == pytest.approx((math.exp(-0.4), math.exp(0.3)))
    assert found.ratio.p50 == pytest.approx((math.exp(0.1) + math.exp(0.2)) / 2)
    spread = found.execution_ratio
    assert (spread.min, spread.max) == pytest.approx((math.exp(-0.4), math.exp(0.2)))
    assert spread.p50 == pytest.approx((math.exp(-0.4) + math.exp(0.2)) / 2)
    # k3 of KL(pi_old || pi): r - 1 - log r, mean of the two executions' means
    k3 = [math.exp(one) - 1 - one for one in (0.1, 0.2, 0.3, -0.4)]
    assert found.kl_old == pytest.approx((sum(k3[:3]) / 3 + k3[3]) / 2, rel=1e-5)


def test_what_is_clipped_is_counted_by_sign_among_what_has_an_advantage() -> None:
    """s = e^0.15 in the first: 2 of its 3 targets are clipped; e^-0.1 in the second: both; the third has no
    advantage; the fourth, A < 0 and s = e^0.1, is not."""
    of = batch([1.0, 1.0, -1.0], [-1.0, -1.0], [0.0, 0.0], [-1.0])
    now = [-0.85] * 3 + [-1.1] * 2 + [-0.5] * 2 + [-0.9]

    clipped = report(of, LossSettings(clip_low=0.05, clip_high=0.05), now, [-1.0] * 8).clipped

    assert (clipped.targets_high, clipped.targets_low) == pytest.approx((2 / 6, 2 / 6))
    assert (clipped.executions_high, clipped.executions_low) == pytest.approx((1 / 3, 1 / 3))


def test_single_targets_that_are_clipped_are_counted() -> None:
    """Log-ratios 0.5 and -0.5 with 0.2: the first for A > 0; the execution's own ratio is 1."""
    of, now, old = batch([1.0, 1.0]), [-0.5, -1.5], [-1.0, -1.0]

    assert report(of, LossSettings(clip_level=ClipLevel.TOKEN), now, old).clipped.targets_high == 0.5
    assert report(of, LossSettings(clip_level=ClipLevel.OFF), now, old).clipped.targets_high == 0


def test_the_behaviour_by_hand() -> None:
    """pi_old / pi_behaviour is 1, 4 and, of one target, not known; the cap makes the second 2."""
    old = [-1.0, -1.0, -1.0]
    of = batch([1.0] * 3, behaviour=[-1.0, -1.0 - math.log(4), math.nan])

    found = report(of, LossSettings(), [-1.3] * 3, old)

    assert found.uncomparable == pytest.approx(1 / 3) and found.behaviour
    assert found.behaviour.gap_mean == pytest.approx(math.log(4) / 2)
    assert found.behaviour.gap_max == pytest.approx(math.log(4))
    before, used = found.behaviour.importance, found.behaviour.importance_used
    assert (before.mean, before.max, before.ess) == pytest.approx((2.5, 4.0, 25 / (2 * 17)))
    assert (used.mean, used.max, used.ess) == pytest.approx((1.5, 2.0, 9 / (2 * 5)))
    assert found.behaviour.capped == 0.5


def test_weights_that_are_not_used_are_reported_all_the_same() -> None:
    of = batch([1.0] * 2, behaviour=[-1.0, -1.0 - math.log(4)])

    found = report(of, LossSettings(importance=Importance.OFF), [-1.0] * 2, None).behaviour

    assert found and found.importance.max == pytest.approx(4)
    assert (found.importance_used.max, found.importance_used.ess, found.capped) == (1, 1, 0)


def test_the_divergence_from_the_reference_is_that_of_the_loss() -> None:
    of = batch([0.0], [0.0, 0.0])
    reference = [-0.8, -1.4, -1.0]
    loss = LossSettings(kl=0.5)

    found = report(of, loss, [-1.0] * 3, None, reference)

    objective = Objective.of(
        of, loss, old_T=None, now_T=None, reference_T=torch.tensor(reference), device=CPU
    )
    value = objective.part(torch.arange(3))(torch.full((3,), -1.0), torch.arange(3)).item()
    assert found.kl_reference == pytest.approx(value / 0.5 / 2, rel=1e-5)
    assert report(of, LossSettings(), [-1.0] * 3, None, reference).kl_reference is None


def test_metrics_are_plain_and_have_names() -> None:
    of = batch([1.0, -1.0], behaviour=[-1.0, -9999.0])
    found = report(of, LossSettings(kl=0.1), [-1.0, -1.2], [-1.0, -1.1], [-1.0, -1.0]).metrics()

    assert {type(value) for value in found.values()} == {float}
    assert {"ratio/p50", "clipped/targets_high", "behaviour/importance/ess", "kl_reference"} <= set(found)
    assert found["behaviour/importance/max"] == math.inf and found["behaviour/importance_used/max"] == 2
    assert json.loads(json.dumps(found)) == found


def test_what_is_not_finite_shows() -> None:
    found = report(batch([1.0, 1.0]), LossSettings(), [-1.0, math.nan], [-1.0, -1.0])

    assert math.isnan(found.ratio.max) and math.isnan(found.execution_ratio.p50) and math.isnan(found.kl_old)
