"""The loss of an update, from log-probabilities, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from gyre.trainer.gspo import Objective, needs_now
from gyre.trainer.pack.merge import merge
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm, clip_range
from tests.trainer.builders import context, targets, tree
from tests.trainer.losses import CPU, batch, near, update

OFF = Importance.OFF


def test_the_first_update_of_a_batch_has_ratio_one_and_no_clip() -> None:
    """Gradients -A w / |U_e|. w: e^0.5 = 1.6487; e^1 = 2.7183, capped at 2; nothing to compare with: 1."""
    of = batch([2.0, 2.0, 2.0], [-1.0], behaviour=[-1.5, -2.0, math.nan, -1.0])

    done = update(of, LossSettings(), [-1.0] * 4, None)

    assert done.gradient_T.tolist() == near([-2 * math.exp(0.5) / 3, -4 / 3, -2 / 3, 1.0])
    assert done.loss == pytest.approx(done.gradient_T.sum().item())


def test_token_ratios_by_hand() -> None:
    """r = e^0.1 and e^-0.2: mean log-ratio -0.05, s = 0.9512; with A > 0 low ratios are never clipped."""
    done = update(batch([1.5, 1.5]), LossSettings(), [-0.9, -1.2], [-1.0, -1.0])

    wanted = [-1.5 * math.exp(0.1) / 2, -1.5 * math.exp(-0.2) / 2]
    assert done.gradient_T.tolist() == near(wanted)
    assert done.loss == pytest.approx(sum(wanted))


def test_execution_ratios_by_hand() -> None:
    """The same targets: both weigh s = e^-0.05."""
    done = update(batch([1.5, 1.5]), LossSettings(ratio=RatioForm.EXECUTION), [-0.9, -1.2], [-1.0, -1.0])

    assert done.gradient_T.tolist() == near([-1.5 * math.exp(-0.05) / 2] * 2)
    assert done.loss == pytest.approx(-1.5 * math.exp(-0.05))


def test_the_published_clip_and_cap_are_the_default() -> None:
    """GSPO, section 5.1: 3e-4 below, 4e-4 above. Truncated importance sampling: 2.0. PPO: 0.2."""
    assert clip_range(LossSettings()) == (3e-4, 4e-4)
    assert clip_range(LossSettings(clip_level=ClipLevel.TRAJECTORY)) == (3e-4, 4e-4)
    assert clip_range(LossSettings(clip_level=ClipLevel.TOKEN)) == (0.2, 0.2)
    assert clip_range(LossSettings(clip_level=ClipLevel.TOKEN, clip_low=0.1, clip_high=0.3)) == (0.1, 0.3)
    assert LossSettings().importance_cap == 2.0


@pytest.mark.parametrize(
    ("advantage", "ratio", "clipped"),
    [
        (1.0, 1.00039, False),
        (1.0, 1.00041, True),
        (1.0, 0.5, False),
        (-1.0, 0.99971, False),
        (-1.0, 0.99969, True),
        (-1.0, 2.0, False),
        (0.0, 2.0, False),
    ],
)
def test_where_the_published_clip_acts(advantage: float, ratio: float, clipped: bool) -> None:
    of, old = batch([advantage] * 2), [-0.5, -0.5]
    now = [-0.5 + math.log(ratio)] * 2

    gradient = update(of, LossSettings(), now, old).gradient_T.tolist()

    assert gradient == near([0.0, 0.0] if clipped else [-advantage * ratio / 2] * 2)


def test_advantages_of_both_signs_share_the_ratio_and_not_the_decision() -> None:
    """Log-ratios 0.3, 0.2, 0.1, 0: s = e^0.15, too high for A > 0; negated, s is too low for A < 0."""
    of, loss, old = batch([1.0, -1.0, 1.0, 0.0]), LossSettings(clip_low=0.1, clip_high=0.1), [-1.0] * 4

    up = update(of, loss, [-0.7, -0.8, -0.9, -1.0], old).gradient_T.tolist()
    down = update(of, loss, [-1.3, -1.2, -1.1, -1.0], old).gradient_T.tolist()

    assert up == near([0, math.exp(0.2) / 4, 0, 0])
    assert down == near([-math.exp(-0.3) / 4, 0, -math.exp(-0.1) / 4, 0])


def test_a_clipped_target_counts_with_the_bound_and_gives_no_gradient() -> None:
    """A > 0 above and A < 0 below; w = e^0.5. Both forms come to the same: the ratio is not looked at."""
    behaviour = [-1.5] * 2
    for ratio in RatioForm:
        loss = LossSettings(ratio=ratio, clip_low=0.2, clip_high=0.3)
        up = update(batch([2.0, 2.0], behaviour=behaviour), loss, [-0.5, -0.3], [-1.0, -1.0])
        down = update(batch([-2.0, -2.0], behaviour=behaviour), loss, [-1.5, -1.3], [-1.0, -1.0])

        assert up.loss == pytest.approx(-1.3 * 2 * math.exp(0.5))
        assert down.loss == pytest.approx(0.8 * 2 * math.exp(0.5))
        assert up.gradient_T.tolist() == down.gradient_T.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("level", "clipped"),
    [
        (ClipLevel.EXECUTION, [False, False, False]),
        (ClipLevel.TRAJECTORY, [False, False, True]),
        (ClipLevel.TOKEN, [True, False, True]),
        (ClipLevel.OFF, [False, False, False]),
    ],
)
@pytest.mark.parametrize("ratio", list(RatioForm))
def test_what_each_level_looks_at(level: ClipLevel, clipped: list[bool], ratio: RatioForm) -> None:
    """Log-ratios 0.3 and -0.4 of one trajectory, 0.25 of another: means -0.05 and 0.25, of all 0.05."""
    of = batch([1.0] * 3, trajectory=[0, 0, 1])
    loss = LossSettings(ratio=ratio, clip_level=level, clip_low=0.2, clip_high=0.2)

    gradient = update(of, loss, [-0.7, -1.4, -0.75], [-1.0] * 3).gradient_T.tolist()

    log_ratio = [0.3, -0.4, 0.25] if ratio is RatioForm.TOKEN else [0.05] * 3
    wanted = [0 if out else -math.exp(one) / 3 for one, out in zip(log_ratio, clipped, strict=True)]
    assert gradient == near(wanted)


def test_without_importance_weights_the_behaviour_is_not_looked_at() -> None:
    of = batch([1.0, 1.0], behaviour=[-3.0, 0.0])

    assert update(of, LossSettings(importance=OFF), [-1.0, -1.0], None).gradient_T.tolist() == [-0.5, -0.5]


def test_the_reference_holds_back_what_is_clipped_and_what_has_no_advantage() -> None:
    """d = log pi_ref - log pi is 0.2 and -0.4; d/dlogp of kl/|U_e| (e^d - d - 1) is kl/|U_e| (1 - e^d).

    The first execution is clipped (s = e^0.5), the second has no variance; w = 2 touches neither.
    """
    of = batch([1.0], [0.0, 0.0], behaviour=[-9.0] * 3)

    done = update(of, LossSettings(kl=0.1), [-0.5, -1.0, -1.0], [-1.0] * 3, reference=[-0.3, -1.4, -1.0])

    first, second = 0.1 * (1 - math.exp(0.2)), 0.1 * (1 - math.exp(-0.4)) / 2
    assert done.gradient_T.tolist() == near([first, second, 0])
    k3 = 0.1 * (math.exp(0.2) - 1.2) + 0.1 * (math.exp(-0.4) - 0.6) / 2
    assert done.loss == pytest.approx(-1.0004 * 2 + k3)


def test_counting_shared_targets_twice_would_flip_the_decision() -> None:
    """Two targets that three trajectories share, with log-ratio 0; then one of each trajectory, with 0.2.

    Each once: (0 + 0 + 0.2 + 0.2 + 0.2) / 5 = 0.12, s = e^0.12 = 1.1275 > 1.1: clipped, no gradient.
    Once per trajectory: 3 (0 + 0 + 0.2) / 9 = 0.0667, s = 1.0690 < 1.1: not clipped, of the execution as of
    each of its rows; and the shared targets would pull with 3/9 each in place of 1/5.
    """
    shared = [context(-1, 1, 2), targets(0, 3, 4)]
    own = [targets(1, 5), targets(1, 6), targets(1, 7)]
    loss = LossSettings(clip_low=0.1, clip_high=0.1, importance=OFF)
    once = merge([tree("a", [*shared, *own])]).targets
    rows = [tree(name, [*shared, leaf]) for name, leaf in zip("abc", own, strict=True)]
    per_row = merge(rows).targets
    per_trajectory = batch([1.0] * 9)
    assert (len(once), len(per_row)) == (5, 9)

    unique = update(once, loss, [-1, -1, -0.8, -0.8, -0.8], [-1.0] * 5)
    flat = update(per_trajectory, loss, [-1, -1, -0.8] * 3, [-1.0] * 9)
    alone = update(per_row, loss, [-1, -1, -0.8] * 3, [-1.0] * 9)

    assert unique.gradient_T.tolist() == [0] * 5
    assert flat.gradient_T.tolist() == near([-1 / 9, -1 / 9, -math.exp(0.2) / 9] * 3)
    assert alone.gradient_T.tolist() == near([-1 / 3, -1 / 3, -math.exp(0.2) / 3] * 3)


@pytest.mark.parametrize(("advantage", "shift"), [(1.0, 0.05), (1.0, -0.1), (-1.0, 0.05), (-1.0, -0.1)])
def test_with_one_advantage_the_execution_form_is_gspo(advantage: float, shift: float) -> None:
    """min(s A, clip(s) A) with the gradient through s itself, arXiv 2507.18071 equations 5 and 7."""
    old_T = torch.tensor([-1.0, -2.0, -0.5, -3.0])
    now_T = (old_T + shift + torch.tensor([0.1, -0.1, 0.05, -0.05])).requires_grad_()
    s = (now_T.double() - old_T).mean().exp()
    wanted = -torch.min(s * advantage, s.clamp(0.97, 1.04) * advantage)
    wanted.backward()
    loss = LossSettings(ratio=RatioForm.EXECUTION, clip_low=0.03, clip_high=0.04)

    done = update(batch([advantage] * 4), loss, now_T.detach(), old_T)

    assert done.loss == pytest.approx(wanted.item(), rel=1e-6)
    assert now_T.grad is not None and done.gradient_T.tolist() == near(now_T.grad.tolist())


def test_which_forms_need_all_ratios_beforehand() -> None:
    cheap = LossSettings(clip_level=ClipLevel.TOKEN)
    assert needs_now(LossSettings()) and not needs_now(cheap)
    assert not needs_now(LossSettings(clip_level=ClipLevel.OFF))
    assert needs_now(LossSettings(clip_level=ClipLevel.OFF, ratio=RatioForm.EXECUTION))

    old_T = torch.tensor([-1.0])
    without = Objective.of(batch([1.0]), cheap, old_T=old_T, now_T=None, reference_T=None, device=CPU)
    leaf_k = torch.tensor([-0.9], requires_grad=True)
    assert without.part(torch.arange(1))(leaf_k, torch.arange(1)).item() == pytest.approx(-math.exp(0.1))


@pytest.mark.parametrize(
    ("loss", "now", "length", "message"),
    [
        (LossSettings(), False, 2, "needs `now_T`"),
        (LossSettings(kl=0.1), True, 2, "needs `reference_T`"),
        (LossSettings(), True, 3, r"2 targets, but log-probabilities of shape \(3,\)"),
    ],
)
def test_what_is_missing_is_said(loss: LossSettings, now: bool, length: int, message: str) -> None:
    given_T = torch.full((length,), -1.0)
    with pytest.raises(ValueError, match=message):
        Objective.of(
            batch([1.0, 1.0]),
            loss,
            old_T=given_T,
            now_T=given_T if now else None,
            reference_T=None,
            device=CPU,
        )


def test_no_targets_are_no_loss() -> None:
    assert update(batch(), LossSettings(), [], []).loss == 0
