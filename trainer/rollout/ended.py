"""What an end is called: its status, its details in the log, and what a scorer's failure may mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gyre.elastic.process.supervised import Report
from gyre.proxy.errors import GyreError
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.rollout.judge import Judgement
from gyre.trainer.rollout.record import Calls
from gyre.trainer.rollout.score import Verdict
from gyre.trainer.rollout.state import Status
from gyre.trainer.rollout.tree import has_files


def details_of(report: Report, calls: Calls | None, held_s: float, limit_s: float) -> dict[str, Any]:
    """For the log."""
    known = {
        "exit_code": report.code,
        "signal": report.signal,
        "seconds": round(report.seconds, 3),
        "held_s": round(held_s, 3),
        "timeout_s": limit_s,
        "stdout_bytes": report.stdout.bytes,
        "stdout_dropped": report.stdout.dropped,
        "stderr_bytes": report.stderr.bytes,
        "stderr_dropped": report.stderr.dropped,
        "left_running": report.left,
        "not_ended": report.immortal,
        "calls": calls.made if calls else None,
        "answered": calls.answered if calls else None,
    }
    return {key: value for key, value in known.items() if value is not None}


def status_after(judgement: Judgement) -> Status:
    if judgement.outcome == ExecutionOutcome.RUN_TIMEOUT:
        return Status.INTERRUPTED
    return Status.UNSCORED if judgement.is_scored else Status.DONE


def judged(verdict: Verdict, workspace: Path) -> Verdict:
    """Where there is nothing that a scorer could look at, and it looked, its failure says just that."""
    if verdict.score is not None or not verdict.looked or has_files(workspace):
        return verdict
    reason = f"the workspace is empty: {verdict.reason}"
    return replace(verdict, score=0.0, outcome=ExecutionOutcome.NO_ARTIFACT, reason=reason)


def why(problem: OSError | GyreError) -> str:
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"`{problem.filename}`: {problem.strerror}"
    return str(problem)
