"""What an update is like: how far the policy went, what was clipped, how far it is from whoever sampled.

Numbers only, made of log-probabilities that are there anyway; no part of the loss. A log-probability that is
not finite makes numbers that are not. Shapes: T targets of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from gyre.trainer.gspo_measured import Measured
from gyre.trainer.pack.piece import Floats64


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    min: float
    p05: float
    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Floats64) -> Spread:
        low, p05, p50, p95, high = np.quantile(values, (0, 0.05, 0.5, 0.95, 1)).tolist()
        return cls(min=low, p05=p05, p50=p50, p95=p95, max=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """Shares of what has an advantage; all 0 in the first update of a batch."""

    targets_high: float
    """Targets with A > 0 that are clipped."""
    targets_low: float
    """And with A < 0."""
    executions_high: float
    """Executions with a clipped target of A > 0."""
    executions_low: float

    @classmethod
    def of(cls, measured: Measured) -> Clipped:
        """Executions count by whether any of their targets is clipped."""
        advantage_T, execution_T = measured.advantage_T, measured.execution_T
        high_T, low_T = measured.clipped_T & (advantage_T > 0), measured.clipped_T & (advantage_T < 0)
        some_T = advantage_T != 0
        all_targets = max(int(some_T.sum()), 1)
        all_executions = max(len(np.unique(execution_T[some_T])), 1)
        return cls(
            targets_high=float(high_T.sum()) / all_targets,
            targets_low=float(low_T.sum()) / all_targets,
            executions_high=len(np.unique(execution_T[high_T])) / all_executions,
            executions_low=len(np.unique(execution_T[low_T])) / all_executions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Importance weights."""

    mean: float
    max: float
    ess: float
    """Effective sample size, (sum w)^2 / (n sum w^2): 1 when all weigh the same."""

    @classmethod
    def of(cls, log_weights: Floats64) -> Weights:
        weights = np.exp(log_weights)
        scaled = np.exp(log_weights - log_weights.max())  # squares of what is not capped could overflow
        ess = float(scaled.sum() ** 2 / (len(scaled) * (scaled**2).sum()))
        return cls(mean=float(weights.mean()), max=float(weights.max()), ess=ess)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The policy at the batch's start against the one that sampled, over targets where both are known."""

    gap_mean: float
    """Mean |log pi_old - log pi_behaviour|."""
    gap_max: float
    importance: Weights
    """pi_old / pi_behaviour before the cap."""
    importance_used: Weights
    """As it weighs in the loss: after the cap, or 1."""
    capped: float
    """Share above the cap."""

    @classmethod
    def of(cls, gap: Floats64, cap: float | None) -> Behaviour:
        """`gap` is log pi_old - log pi_behaviour, of one target at least; no `cap`: not weighed at all."""
        used = np.zeros_like(gap) if cap is None else np.minimum(gap, np.log(cap))
        return cls(
            gap_mean=float(np.abs(gap).mean()),
            gap_max=float(np.abs(gap).max()),
            importance=Weights.of(gap),
            importance_used=Weights.of(used),
            capped=0.0 if cap is None else float((gap > np.log(cap)).mean()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    ratio: Spread
    """r_t of targets."""
    execution_ratio: Spread
    """s_e of executions."""
    clipped: Clipped
    kl_old: float
    """KL(pi_old || pi), k3 estimate, mean over executions of means over their targets."""
    kl_reference: float | None
    """KL(pi || pi_reference), the same way and as it is in the loss; None without a reference."""
    behaviour: Behaviour | None
    """None where no target has a behaviour that may be compared."""
    uncomparable: float
    """Share of targets without one: their importance weight is 1."""

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, measured: Measured) -> LossReport:
        """Of one target at least."""
        old_T, now_T, reference_T = measured.old_T, measured.now_T, measured.reference_T
        _, first = np.unique(measured.execution_T, return_index=True)
        known_T = ~np.isnan(measured.behaviour_T)
        gap = (old_T - measured.behaviour_T)[known_T]
        return cls(
            ratio=Spread.of(np.exp(now_T - old_T)),
            execution_ratio=Spread.of(measured.execution_ratio_T[first]),
            clipped=Clipped.of(measured),
            kl_old=_mean_kl(measured, now_T - old_T),
            kl_reference=None if reference_T is None else _mean_kl(measured, reference_T - now_T),
            behaviour=Behaviour.of(gap, measured.cap) if len(gap) else None,
            uncomparable=float(1 - known_T.mean()),
        )

    def metrics(self) -> dict[str, float]:
        """By name, as `clipped/targets_high`; without what is not known."""
        return dict(_flat("", asdict(self)))


def _mean_kl(measured: Measured, log_ratio_T: Floats64) -> float:
    k3_T = np.expm1(log_ratio_T) - log_ratio_T
    return float((measured.weight_T * k3_T).sum() / len(np.unique(measured.execution_T)))


def _flat(prefix: str, values: dict[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}/", value)
        elif isinstance(value, float):
            yield f"{prefix}{name}", value
