"""Every form of the loss: against the oracle, however it is cut up, with a million targets, with NaN."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.gspo import Objective, mean_ratio, needs_now
from gyre.trainer.pack.piece import Targets
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm
from tests.trainer import oracle
from tests.trainer.losses import CPU, batch, near, update

FORMS = [
    LossSettings(ratio=ratio, clip_level=level, importance=importance, clip_low=0.05, clip_high=0.08, kl=kl)
    for ratio in RatioForm
    for level in ClipLevel
    for importance, kl in ((Importance.TRUNCATED, 0.0), (Importance.OFF, 0.0), (Importance.TRUNCATED, 0.1))
]


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
