"""What a scorer says of one execution. A value; `gyre.proxy.log.score` writes it into a log."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gyre.proxy.errors import ScoreError
from gyre.proxy.executions import ExecutionOutcome

OUTCOMES = tuple(outcome.value for outcome in ExecutionOutcome if outcome != ExecutionOutcome.OPEN)
"""Those that can be given with a score, or instead of one."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A score, why there is none, or what the execution belongs to.

    Raises:
        ScoreError: the score is no finite number, the outcome is unknown, or nothing is said.
    """

    execution_id: str
    attempt: int | None = None
    """None: the last one."""
    score: float | None = None
    outcome: str | None = None
    task: str | None = None
    group: str | None = None
    artifact: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ScoreError(f"the score of `{self.execution_id}` is {self.score}, which is no finite number")
        if self.outcome is not None and self.outcome not in OUTCOMES:
            hint = f"known outcomes: {', '.join(OUTCOMES)}"
            raise ScoreError(f"unknown outcome `{self.outcome}` of `{self.execution_id}`", hint)
        if all(value is None for value in (self.score, self.outcome, self.task, self.group)):
            hint = "give a score, or an outcome that says why there is none"
            raise ScoreError(f"nothing is said of `{self.execution_id}`", hint)
