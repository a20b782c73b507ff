"""When a run evaluates, and what came of it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.live.assignment import Finished
from gyre.trainer.live.reports import PASS, Evaluated
from gyre.trainer.live.settings import EvaluationTable, SamplingTable
from gyre.trainer.rollout.state import State


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One of those that a run makes."""

    key: str
    """Of its executions in the log, and of its folder names."""
    version: str
    update: int
    temperature: float


def due(
    table: EvaluationTable, sampling: SamplingTable, *, version: int, update: int, last: bool
) -> list[Evaluation]:
    """Before the first burst, after the last, and every so many publications; with each temperature.

    A version is evaluated under the same names whenever it is asked for, so what is done is not done twice.
    """
    wanted = version == 0 or last or (table.every and version % table.every == 0)
    if not table.tasks or not wanted:
        return []
    name = f"eval-{version:06d}"
    found = [Evaluation(name, str(version), update, sampling.temperature)]
    return [*found, Evaluation(f"{name}-greedy", str(version), update, 0.0)] if table.greedy else found


def evaluated(evaluation: Evaluation, finished: Finished, began: float) -> Evaluated:
    """An execution that left nothing to score counts as 0; one that could not be scored, or whose engine was
    gone, not at all. It began then, by the clock of `Finished.at`; it may have ended long ago."""
    scores = [score for state in finished.states if (score := score_of(state)) is not None]
    outcomes = Counter("lost" if state.lost else str(state.outcome) for state in finished.states)
    outcomes["not_tried"] = len(finished.failures)
    whole = [state.ended == ExecutionOutcome.COMPLETED for state in finished.states if not state.lost]
    return Evaluated(
        version=evaluation.version,
        update=evaluation.update,
        temperature=evaluation.temperature,
        episodes=len(scores),
        pass_rate=fmean(score >= PASS for score in scores) if scores else None,
        mean_score=fmean(scores) if scores else None,
        outcomes=dict(+outcomes),
        seconds=finished.at - began,
        completed=fmean(whole) if whole else None,
    )


def score_of(state: State) -> float | None:
    if state.lost:
        return None
    if state.score is None and state.outcome == ExecutionOutcome.NO_ARTIFACT:
        return 0.0
    return state.score
