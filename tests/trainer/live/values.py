"""Small values of a live run."""

from __future__ import annotations

from typing import Any

from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.live.reports import BatchReport, Trained
from gyre.trainer.rollout.state import State, Status


def state(name: str = "e", score: float | None = 1.0, **fields: Any) -> State:
    """An execution that has come to its end."""
    outcome = fields.pop("outcome", ExecutionOutcome.COMPLETED)
    ended = fields.pop("ended", outcome)
    defaults = {"status": Status.DONE, "ran": True, "outcome": outcome, "ended": ended, "score": score}
    return State(execution=name, **(defaults | fields))


def trained(key: str = "g000000", scores: tuple[float, ...] = (0.0, 1.0), **fields: Any) -> Trained:
    """A group as it was consumed."""
    defaults: dict[str, Any] = {
        "task": "t",
        "burst": 0,
        "staleness": 0,
        "update_staleness": 0,
        "outcomes": {"completed": len(scores)},
        "left_out": {},
        "sampled": 10,
        "kept": 10,
        "seconds": 1.0,
        "seconds_scoring": 0.1,
        "seconds_tree": 0.1,
    }
    return Trained(key=key, scores=scores, **(defaults | fields))


def batch(*groups: Trained, number: int = 0, **fields: Any) -> BatchReport:
    defaults: dict[str, Any] = {"burst": number, "version": str(number), "updates": 1, "seconds": {}}
    return BatchReport(batch=number, groups=groups, **(defaults | fields))
