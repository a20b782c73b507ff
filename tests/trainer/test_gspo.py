"""The loss of an update, from log-probabilities: by hand, against the oracle, and however it is cut up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.gspo import Objective, clip_range, mean_ratio, needs_now
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Targets
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm
from tests.trainer import oracle
from tests.trainer.builders import context, targets, tree

CPU = torch.device("cpu")
OFF = Importance.OFF
FORMS = [
    LossSettings(ratio=ratio, clip_level=level, importance=importance, clip_low=0.05, clip_high=0.08, kl=kl)
    for ratio in RatioForm
    for level in ClipLevel
    for importance, kl in ((Importance.TRUNCATED, 0.0), (OFF, 0.0), (Importance.TRUNCATED, 0.1))
]


def batch(
    *executions: Sequence[float],
    behaviour: Sequence[float] | None = None,
    trajectory: Sequence[int] | None = None,
) -> Targets:
    """Executions by the advantages of their targets, all sampled by a policy that is not known."""
    sizes = [len(advantages) for advantages in executions]
    execution_T = np.repeat(np.arange(len(sizes)), sizes)
    trajectory_T = execution_T if trajectory is None else np.array(trajectory)
    count = sum(sizes)
    return Targets(
        execution_T=execution_T,
        trajectory_T=trajectory_T,
        weight_T=np.repeat(1 / np.array(sizes, np.float64), sizes),
        advantage_T=np.array([one for advantages in executions for one in advantages], np.float64),
        behaviour_T=np.array([math.nan] * count if behaviour is None else behaviour, np.float32),
        temperature_T=np.ones(count, np.float32),
        version_T=np.full(count, -1),
        versions=(),
        executions=tuple(f"run-{index}" for index in range(len(sizes))),
        trajectories=int(trajectory_T.max(initial=-1)) + 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Loss and its derivative by each log-probability, not divided by E."""

    loss: float
    gradient_T: torch.Tensor


def update(
    of: Targets,
    loss: LossSettings,
    now: Sequence[float] | torch.Tensor,
    old: Sequence[float] | torch.Tensor | None,
    reference: Sequence[float] | torch.Tensor | None = None,
    pieces: Sequence[Sequence[int]] | None = None,
) -> Update:
    """In pieces, each with an objective of its own, as ranks have it, and each in two parts."""
    now_T = torch.as_tensor(now, dtype=torch.float32)
    old_T = None if old is None else torch.as_tensor(old, dtype=torch.float32)
    reference_T = None if reference is None else torch.as_tensor(reference, dtype=torch.float32)
    leaf_T = now_T.clone().requires_grad_()
    total = 0.0
    for piece in [range(len(of))] if pieces is None else pieces:
        objective = Objective.of(of, loss, old_T=old_T, now_T=now_T, reference_T=reference_T, device=CPU)
        target_K = torch.tensor(list(piece), dtype=torch.int64)
        part = objective.part(target_K)
        for which_k in torch.arange(len(target_K)).split(max(1, len(target_K) // 2)):
            term = part(leaf_T[target_K[which_k]], which_k)
            term.backward()
            total += term.item()
    return Update(loss=total, gradient_T=torch.zeros(len(of)) if leaf_T.grad is None else leaf_T.grad)


def near(values: Sequence[float]) -> object:
    return pytest.approx(list(values), rel=1e-5, abs=1e-7)


# ------------------------------------------------------------------------------------------------- by hand


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


# ----------------------------------------------------------------------------- random batches, in every form


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    of: Targets
    now_T: torch.Tensor
    old_T: torch.Tensor
    reference_T: torch.Tensor
    pieces: list[list[int]]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Executions on both sides of the clip, their targets over one to six pieces in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    count = sum(sizes)
    execution_T = np.repeat(np.arange(len(sizes)), sizes)
    advantage_T = rng.normal(size=len(sizes))[execution_T]
    mixed_T = rng.random(count) < 0.2
    advantage_T[mixed_T] = rng.choice([-1.0, 0.0, 1.0], mixed_T.sum())
    old_T = -rng.exponential(2, count)
    behaviour_T = np.where(rng.random(count) < 0.2, math.nan, old_T - rng.normal(0, 0.7, count))
    cut = np.split(advantage_T, np.cumsum(sizes)[:-1])
    of = batch(*cut, behaviour=behaviour_T.tolist(), trajectory=2 * execution_T + rng.integers(0, 2, count))
    shift_T = rng.normal(0, 0.15, len(sizes))[execution_T]
    piece_T = rng.integers(0, draw(st.integers(1, 6)), count)
    order = rng.permutation(count)
    return Drawn(
        of=of,
        now_T=torch.tensor(old_T + shift_T + rng.normal(0, 0.1, count), dtype=torch.float32),
        old_T=torch.tensor(old_T, dtype=torch.float32),
        reference_T=torch.tensor(old_T + rng.normal(0, 0.3, count), dtype=torch.float32),
        pieces=[order[piece_T[order] == piece].tolist() for piece in range(6)],
    )


@settings(deadline=None, max_examples=60)
@given(batch_=drawn(), form=st.sampled_from(FORMS), first=st.booleans())
def test_pieces_and_ranks_change_nothing(batch_: Drawn, form: LossSettings, first: bool) -> None:
    old_T = None if first else batch_.old_T
    whole = update(batch_.of, form, batch_.now_T, old_T, batch_.reference_T)
    cut = update(batch_.of, form, batch_.now_T, old_T, batch_.reference_T, batch_.pieces)

    assert torch.equal(whole.gradient_T, cut.gradient_T)
    assert cut.loss == pytest.approx(whole.loss, rel=1e-6, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(batch_=drawn(), form=st.sampled_from(FORMS))
def test_every_form_is_what_the_oracle_says(batch_: Drawn, form: LossSettings) -> None:
    of = batch_.of
    answers = [
        oracle.Answer(
            execution=int(of.execution_T[t]),
            trajectory=int(of.trajectory_T[t]),
            advantage=float(of.advantage_T[t]),
            behaviour=None if math.isnan(of.behaviour_T[t]) else float(of.behaviour_T[t]),
        )
        for t in range(len(of))
    ]
    new_T = batch_.now_T.double().requires_grad_()
    wanted = oracle.objective(answers, form, new_T, batch_.old_T.double(), batch_.reference_T)
    found = update(of, form, batch_.now_T, batch_.old_T, batch_.reference_T)

    executions = len(of.executions)
    assert found.loss / executions == pytest.approx(wanted.loss.item(), rel=1e-5, abs=1e-5)
    gradient_T = torch.zeros(len(of))
    if wanted.loss.requires_grad:
        wanted.loss.backward()
        assert new_T.grad is not None
        gradient_T = new_T.grad.float()
    torch.testing.assert_close(found.gradient_T / executions, gradient_T, rtol=1e-5, atol=1e-6)


def test_an_execution_over_three_pieces_and_two_ranks_is_decided_as_a_whole() -> None:
    """Log-ratios 0.5, 0.5 | -0.2, -0.2 | 0.1, 0.1: s = e^0.1333 = 1.1426. Each piece alone would be clipped
    (the first), not (the second, third) at 1.12: the whole is."""
    of = batch([1.0] * 6, [-1.0] * 2)
    now, old = [-0.5, -0.5, -1.2, -1.2, -0.9, -0.9, -1.0, -1.1], [-1.0] * 8
    loss = LossSettings(clip_low=0.12, clip_high=0.12)

    cut = update(of, loss, now, old, pieces=[[0, 1], [2, 3, 6], [4, 5, 7]])

    assert cut.gradient_T.tolist() == update(of, loss, now, old).gradient_T.tolist()
    assert cut.gradient_T.tolist() == near([0] * 6 + [0.5, math.exp(-0.1) / 2])


# ------------------------------------------------------------------------------------------------ numerics


def test_the_ratio_of_a_million_targets_is_exact() -> None:
    """Large log-ratios that nearly cancel, as fp32 numbers: fp32 sums are off by more than the clip."""
    rng = np.random.default_rng(0)
    count = 1_000_000
    log_ratio_T = rng.normal(0, 3, count).astype(np.float32)
    log_ratio_T -= np.float32(log_ratio_T.mean(dtype=np.float64) - 4.01e-4)
    exact = math.exp(math.fsum(log_ratio_T.tolist()) / count)

    ratio_T = mean_ratio(torch.tensor(log_ratio_T), torch.zeros(count, dtype=torch.int64))

    assert ratio_T.dtype == torch.float64 and ratio_T[0].item() == pytest.approx(exact, rel=1e-12)


def test_a_million_targets_are_clipped_at_the_published_range() -> None:
    """4e-4 is a ratio of 1.0004. Summed up in fp32, one after the other, 1.000403 comes out as 1.000399."""
    of = batch([1.0] * 1_000_000)
    old_T = torch.full((len(of),), -0.25)
    for ratio, trained in ((1.000397, True), (1.000403, False)):
        objective = Objective.of(
            of, LossSettings(), old_T=old_T, now_T=old_T + math.log(ratio), reference_T=None, device=CPU
        )
        leaf_k = torch.full((3,), -0.25).requires_grad_()
        objective.part(torch.tensor([0, 500_000, 999_999]))(leaf_k, torch.arange(3)).backward()

        assert leaf_k.grad is not None and bool(leaf_k.grad.any()) == trained


@pytest.mark.parametrize("what", ["now", "old", "reference", "forward"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(what: str, value: float) -> None:
    """Clipped or not, in whatever log-probability, in every form: the update will be thrown away."""
    given = {name: torch.tensor([-1.0, -1.0]) for name in ("now", "old", "reference", "forward")}
    given[what][0] = value
    looked_at = [
        form for form in FORMS if {"reference": bool(form.kl), "now": needs_now(form)}.get(what, True)
    ]
    for form, advantage in itertools.product(looked_at, (1.0, -1.0)):
        objective = Objective.of(
            batch([advantage, advantage], behaviour=[-1.0, -1.0]),
            form,
            old_T=given["old"],
            now_T=given["now"],
            reference_T=given["reference"],
            device=CPU,
        )
        leaf_k = given["forward"].clone().requires_grad_()
        assert not math.isfinite(objective.part(torch.arange(2))(leaf_k, torch.arange(2)).item()), form


def test_a_ratio_that_overflows_is_not_clamped() -> None:
    of = batch([-1.0])

    assert update(of, LossSettings(), [-1.0], [-89.0]).loss == pytest.approx(math.exp(88), rel=1e-4)
    assert update(of, LossSettings(), [-1.0], [-99.0]).loss == math.inf


# --------------------------------------------------------------------------------------- what has to be given


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
