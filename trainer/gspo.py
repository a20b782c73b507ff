"""The loss: GSPO with token-level importance weights and a clip per execution.

U_e are the targets of execution e: what the policy sampled on its admitted trajectories, each once, however
many trajectories pass through it. E executions, A_t the advantage, pi_old the policy at the batch's start:

    r_t = pi(t) / pi_old(t)
    s_e = exp(mean over U_e of log r_t)
    w_t = min(pi_old(t) / pi_behaviour(t), cap); 1 where there is no behaviour to compare with
    L   = -1/E  sum over e  1/|U_e|  sum over U_e of  r_t A_t w_t

A target gives no gradient where A_t > 0 and s_e > 1 + high, or A_t < 0 and s_e < 1 - low. s_e is one number
for the execution and enters as a constant, so an execution may be cut into pieces and spread over ranks:
whoever has all log-probabilities knows s_e, and each piece back-propagates alone. Division by E comes at the
very end, once.

Sources:
- QwenGyre (arXiv 2609.33848): targets counted once, the mean within an execution and then over executions,
  token-level importance weights, execution-level clipping. It publishes neither clip nor cap.
- GSPO (arXiv 2507.18071): s and its clip, equations 5 to 7; 3e-4 and 4e-4, section 5.1; the form
  s_e pi_t / stopgrad(pi_t) that `ratio = "execution"` takes is its GSPO-token.
- PPO (arXiv 1707.06347), equation 7: the min form, and `clip_level = "token"` with its 0.2.
- The cap of 2 is what trainers use for truncated importance sampling per token.
- The k3 estimator of a divergence: J. Schulman, "Approximating KL Divergence" (2020).

Where this differs:
- From GSPO. Its sequence is our execution, with each target once: counted once per trajectory, shared targets
  would move s_e as well, and with it the decision to clip. `ratio = "token"`, the default, weighs each target
  with its own r_t and leaves only the clip to s_e.
- From PPO. The clip looks at s_e (`execution`), at the same mean over the targets that a trajectory brings
  first (`trajectory`), or at r_t (`token`); the target need not be weighed with what the clip looks at. With
  `ratio = "execution"` it is weighed with s_e whatever the clip level.
- A_t may differ from target to target. Each is clipped or not by its own sign, with the common s_e.
- A clipped target still counts in the value of the loss, with the bound in place of its ratio: 1 + high or
  1 - low. That is PPO's min form, exactly so where the clip looks at what the target is weighed with, and it
  keeps the values of all forms comparable. With `ratio = "token"` the value jumps a little where an execution
  becomes clipped, since the r_t of its targets are not 1 + high.
- pi_old is computed by the trainer. What an engine recorded, in another precision perhaps, is the behaviour
  and nothing else (the decoupled form): it takes no part in r_t and s_e.
- The divergence from the reference, `kl` times exp(d) - d - 1 with d = log pi_ref - log pi, has its target's
  weight 1/|U_e|, but neither w_t nor a clip: it holds the policy back just where the clip lets go.
- No log-ratio is clamped. Beyond 88 exp() overflows. Whatever is not finite, in a clipped target too, makes
  loss or gradient not finite: such an update is to be thrown away and counted, not half used.

Knows neither models nor files. Shapes: T targets of a batch, K of a piece, k of a part of a piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gyre.trainer.gspo_measured import Measured
from gyre.trainer.gspo_report import LossReport
from gyre.trainer.pack.piece import Targets
from gyre.trainer.passes.run import LossPart
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm, clip_range


def needs_now(settings: LossSettings) -> bool:
    """Whether all log-probabilities have to be known before the first gradient, once pi is not pi_old."""
    averaged = settings.clip_level in (ClipLevel.EXECUTION, ClipLevel.TRAJECTORY)
    return averaged or settings.ratio is RatioForm.EXECUTION


def mean_ratio(log_ratio_T: torch.Tensor, index_T: torch.Tensor) -> torch.Tensor:
    """Of each target exp of the mean log-ratio over all targets with its index, as s_e. fp64.

    Computed on the CPU: sums in an order that varies, as a GPU's, could let two ranks decide differently.
    """
    sums = torch.bincount(index_T, weights=log_ratio_T.double())
    counts = torch.bincount(index_T).clamp(min=1)
    return (sums / counts).exp()[index_T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Constants of targets, all of the same shape and on one device; fp32 but for `clipped`."""

    settings: LossSettings
    weight: torch.Tensor
    gain: torch.Tensor
    """A_t / |U_e|."""
    behaviour: torch.Tensor
    execution_ratio: torch.Tensor
    """s_e."""
    clipped: torch.Tensor
    """As execution or trajectory decide; all False at the other levels."""
    old: torch.Tensor | None
    """None: the first update. pi_old is what the same pass computes."""
    reference: torch.Tensor | None

    def at(self, index: torch.Tensor) -> Terms:
        return Terms(
            settings=self.settings,
            weight=self.weight[index],
            gain=self.gain[index],
            behaviour=self.behaviour[index],
            execution_ratio=self.execution_ratio[index],
            clipped=self.clipped[index],
            old=None if self.old is None else self.old[index],
            reference=None if self.reference is None else self.reference[index],
        )

    def loss(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Sum over these targets. The sum is fp64; gradients of `logprobs` are as precise as these are."""
        old = logprobs.detach() if self.old is None else self.old
        log_ratio = logprobs - old
        weighed = self._clipped(self._ratio(logprobs, log_ratio), log_ratio)
        terms = -self.gain * self._importance(old) * weighed
        if self.reference is not None:
            d = self.reference - logprobs
            terms = terms + self.settings.kl * self.weight * (d.exp() - d - 1)
        return terms.sum(dtype=torch.float64)

    def _ratio(self, logprobs: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
        if self.settings.ratio is RatioForm.TOKEN:
            return log_ratio.exp()
        return self.execution_ratio * (logprobs - logprobs.detach()).exp()

    def _clipped(self, ratio: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
        """PPO's min form, up to A_t w_t: the bound, without gradient, where the target is clipped."""
        clipped = self.clipped
        if self.settings.clip_level is ClipLevel.TOKEN:
            clipped = outside(log_ratio.detach().exp(), self.gain, *clip_range(self.settings))
        low, high = clip_range(self.settings)
        bound = torch.where(self.gain > 0, 1 + high, 1 - low)
        # 0 * : a clipped target must not hide what is not finite.
        return torch.where(clipped, bound, ratio) + 0 * log_ratio

    def _importance(self, old: torch.Tensor) -> torch.Tensor:
        """w_t."""
        if self.settings.importance is Importance.OFF:
            return torch.ones_like(old)
        weight = (old - self.behaviour).exp().clamp(max=self.settings.importance_cap)
        return torch.where(self.behaviour.isnan(), 1.0, weight)


def outside(ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Where the policy went far enough already in the direction that its advantage points to."""
    return ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one update. Every rank makes the same one, from vectors of all targets of the update."""

    settings: LossSettings
    targets: Targets
    old_T: torch.Tensor | None
    reference_T: torch.Tensor | None
    clipped_T: torch.Tensor
    """These three on the CPU, in fp64 and bool."""
    terms_T: Terms

    @classmethod
    def of(
        cls,
        targets: Targets,
        settings: LossSettings,
        *,
        old_T: torch.Tensor | None,
        now_T: torch.Tensor | None,
        reference_T: torch.Tensor | None,
        device: torch.device,
    ) -> Objective:
        """Log-probabilities of all targets: at the batch's start, with the weights of now, of the reference.

        Without `old_T` this is the batch's first update: the ratio is 1, and `now_T` is not needed. Later it
        is where `needs_now`. `reference_T` is needed, and looked at, where `kl` is not 0. A ValueError says
        what is missing or of another length.
        """
        _check(targets, settings, old_T, now_T, reference_T)
        reference_T = reference_T if settings.kl else None
        log_ratio_T = torch.zeros(len(targets), dtype=torch.float64)
        if old_T is not None and now_T is not None:
            log_ratio_T = _host(now_T) - _host(old_T)
        clipped_T = _clipped_by_mean(targets, settings, log_ratio_T)
        return cls(
            settings=settings,
            targets=targets,
            old_T=None if old_T is None else _host(old_T),
            reference_T=None if reference_T is None else _host(reference_T),
            clipped_T=clipped_T,
            terms_T=_terms(targets, settings, log_ratio_T, clipped_T, old_T, reference_T, device),
        )

    def part(self, target_K: torch.Tensor) -> LossPart:
        """The loss of a piece with these targets: sums weighed with 1/|U_e|, not yet divided by E."""
        terms_K = self.terms_T.at(target_K.to(self.terms_T.gain.device))

        def loss(logprobs_k: torch.Tensor, which_k: torch.Tensor) -> torch.Tensor:
            return terms_K.at(which_k).loss(logprobs_k)

        return loss

    def report(self, logprobs_T: torch.Tensor) -> LossReport:
        """What this update is like, from the log-probabilities of all targets as its passes gave them."""
        return LossReport.of(self.measured(logprobs_T))

    def measured(self, logprobs_T: torch.Tensor) -> Measured:
        """What a report is made of; those of several objectives make one."""
        targets, now_T = self.targets, _host(logprobs_T)
        old_T = now_T if self.old_T is None else self.old_T
        clipped_T = self.clipped_T
        if self.settings.clip_level is ClipLevel.TOKEN:
            advantage_T = torch.tensor(targets.advantage_T)
            clipped_T = outside((now_T - old_T).exp(), advantage_T, *clip_range(self.settings))
        off = self.settings.importance is Importance.OFF
        return Measured(
            execution_T=targets.execution_T,
            weight_T=targets.weight_T,
            advantage_T=targets.advantage_T,
            behaviour_T=targets.behaviour_T,
            old_T=old_T.numpy(),
            now_T=now_T.numpy(),
            reference_T=None if self.reference_T is None else self.reference_T.numpy(),
            execution_ratio_T=mean_ratio(now_T - old_T, torch.tensor(targets.execution_T)).numpy(),
            clipped_T=clipped_T.numpy(),
            cap=None if off else self.settings.importance_cap,
        )


def _check(
    targets: Targets,
    settings: LossSettings,
    old_T: torch.Tensor | None,
    now_T: torch.Tensor | None,
    reference_T: torch.Tensor | None,
) -> None:
    if old_T is not None and now_T is None and needs_now(settings):
        raise ValueError("after the first update the ratio of an execution needs `now_T`")
    if settings.kl and reference_T is None:
        raise ValueError("`kl` needs `reference_T`")
    for given_T in (old_T, now_T, reference_T):
        if given_T is not None and given_T.shape != (len(targets),):
            raise ValueError(f"{len(targets)} targets, but log-probabilities of shape {tuple(given_T.shape)}")


def _clipped_by_mean(targets: Targets, settings: LossSettings, log_ratio_T: torch.Tensor) -> torch.Tensor:
    index = {ClipLevel.EXECUTION: targets.execution_T, ClipLevel.TRAJECTORY: targets.trajectory_T}
    if settings.clip_level not in index:
        return torch.zeros(len(targets), dtype=torch.bool)
    ratio_T = mean_ratio(log_ratio_T, torch.tensor(index[settings.clip_level]))
    return outside(ratio_T, torch.tensor(targets.advantage_T), *clip_range(settings))


def _terms(
    targets: Targets,
    settings: LossSettings,
    log_ratio_T: torch.Tensor,
    clipped_T: torch.Tensor,
    old_T: torch.Tensor | None,
    reference_T: torch.Tensor | None,
    device: torch.device,
) -> Terms:
    weight_T = torch.tensor(targets.weight_T)
    # 0 * : a ratio that is not finite may have decided anything, and must show in the loss.
    gain_T = weight_T * torch.tensor(targets.advantage_T) + 0 * log_ratio_T
    execution_T = torch.tensor(targets.execution_T)
    return Terms(
        settings=settings,
        weight=weight_T.to(device, torch.float32),
        gain=gain_T.to(device, torch.float32),
        behaviour=torch.tensor(targets.behaviour_T).to(device, torch.float32),
        execution_ratio=mean_ratio(log_ratio_T, execution_T).to(device, torch.float32),
        clipped=clipped_T.to(device),
        old=None if old_T is None else old_T.detach().to(device, torch.float32),
        reference=None if reference_T is None else reference_T.detach().to(device, torch.float32),
    )


def _host(logprobs_T: torch.Tensor) -> torch.Tensor:
    return logprobs_T.detach().to("cpu", torch.float64)
