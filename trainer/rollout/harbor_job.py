"""A job folder as Harbor leaves it: which trials it has, how each ended, what it was worth.

    JOB/config.json, result.json            the job; result.json counts its retries
    JOB/TRIAL/config.json                   written when a trial begins
    JOB/TRIAL/result.json                   and when it has ended: task, rewards, exceptions
    JOB/TRIAL/agent/                        what the agent logged, with its session ids
    JOB/TRIAL/steps/STEP/agent/             the same for a task in steps

Only what is needed is read, so that a newer Harbor with more fields changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import msgspec

from gyre.proxy.errors import GyreError
from gyre.proxy.executions import ExecutionOutcome
from gyre.proxy.log.findings import Finding, error, note
from gyre.trainer.rollout.rewards import rewards_of, score_of

RESULT, CONFIG = "result.json", "config.json"
_VERIFIER_ERRORS = (
    *("VerifierTimeoutError", "RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
    *("AddTestsDirError", "DownloadVerifierDirError"),
)
_MOST_REASON = 300


class HarborError(GyreError, ValueError):
    """A folder is no job of Harbor's, or what is asked of it cannot be."""


class _Exception(msgspec.Struct):
    exception_type: str
    exception_message: str = ""


class _Verified(msgspec.Struct):
    rewards: dict[str, Any] | None = None


class _Part(msgspec.Struct):
    """What a trial and each of its steps have in common."""

    exception_info: _Exception | None = None
    agent_execution: dict[str, Any] | None = None
    """Times; there once the agent was started."""
    verifier: dict[str, Any] | None = None
    """The same of the verifier."""


class _Model(msgspec.Struct):
    name: str


class _Agent(msgspec.Struct):
    name: str = ""
    model_info: _Model | None = None


class _Source(msgspec.Struct):
    path: str | None = None


class _Config(msgspec.Struct):
    source_trial: _Source | None = None


class _Result(_Part, kw_only=True):
    """A trial's result.json."""

    task_name: str
    trial_name: str
    verifier_result: _Verified | None = None
    agent_info: _Agent = msgspec.field(default_factory=_Agent)
    config: _Config = msgspec.field(default_factory=_Config)
    started_at: datetime | None = None
    step_results: list[_Part] | None = None
    reward_valid: bool | None = None
    """Whether Harbor itself counts the reward; older versions do not say."""

    @property
    def parts(self) -> list[_Part]:
        return [self, *(self.step_results or ())]


class _Stats(msgspec.Struct):
    n_retries: int = 0


class _JobResult(msgspec.Struct):
    stats: _Stats = msgspec.field(default_factory=_Stats)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a trial says of its execution."""

    outcome: ExecutionOutcome
    score: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that ended."""

    folder: Path
    name: str
    task: str
    agent: str
    model: str
    judged: Judged
    ran: bool
    """Whether its agent was started at all."""
    started: datetime | None = None
    graded: str | None = None
    """The trial whose work it only scored again."""


@dataclass(slots=True)
class Job:
    folder: Path
    trials: list[Trial] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    retries: int = 0
    """Trials that were begun again under their name."""


def read_job(folder: Path, reward: str = "reward") -> Job:
    """Read a job; a trial that cannot be read is a finding, and the rest goes on.

    Args:
        folder: of a job, or of a single trial.
        reward: the one that counts where a verifier gives several.

    Raises:
        HarborError: no such folder, or nothing of Harbor's in it.
    """
    if not folder.is_dir():
        raise HarborError(f"`{folder}` is no folder")
    job = Job(folder.resolve())
    single = _names_trial(folder / RESULT)
    trials = [folder] if single else [path for path in sorted(folder.iterdir()) if _looks_like_trial(path)]
    if not trials:
        hint = "give the folder of a job, as in `jobs/2026-01-31__12-00-00`"
        raise HarborError(f"no trials of Harbor in `{folder}`", hint)
    job.retries = 0 if single else _retries(folder / RESULT)
    for path in trials:
        _add(job, path, reward)
    return job


def _looks_like_trial(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in (RESULT, CONFIG))


def _names_trial(path: Path) -> bool:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "trial_name" in found


def _retries(path: Path) -> int:
    """Jobs that still run, or are damaged, may have no result yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_JobResult).stats.n_retries
    except (OSError, ValueError):
        return 0


def _add(job: Job, folder: Path, reward: str) -> None:
    where = str(folder)
    try:
        result = msgspec.json.decode((folder / RESULT).read_bytes(), type=_Result)
    except FileNotFoundError:
        job.findings.append(note("unfinished_trial", where, "it has no result yet"))
    except OSError as problem:
        job.findings.append(error("broken_trial", where, f"`{RESULT}`: {problem.strerror or problem}"))
    except ValueError as problem:
        job.findings.append(error("broken_trial", where, f"`{RESULT}`: {problem}"))
    else:
        trial = _trial(folder, result, reward)
        if any(other.name == trial.name for other in job.trials):
            job.findings.append(error("broken_trial", where, f"another folder has the trial `{trial.name}`"))
        else:
            job.trials.append(trial)


def _trial(folder: Path, result: _Result, reward: str) -> Trial:
    source = result.config.source_trial
    return Trial(
        folder=folder.resolve(),
        name=result.trial_name,
        task=result.task_name,
        agent=result.agent_info.name,
        model=result.agent_info.model_info.name if result.agent_info.model_info else "",
        judged=_judged(result, reward),
        ran=any(part.agent_execution is not None for part in result.parts),
        started=result.started_at.astimezone(UTC) if result.started_at else None,
        graded=PurePath(source.path).name if source and source.path else None,
    )


def _judged(result: _Result, reward: str) -> Judged:
    errors = [part.exception_info for part in result.parts if part.exception_info]
    types = [found.exception_type for found in errors]
    said = _said(errors[0]) if errors else None
    if "CancelledError" in types:
        return Judged(ExecutionOutcome.RUN_TIMEOUT, None, said)
    rewards = result.verifier_result.rewards if result.verifier_result else None
    if rewards is None:
        graded = any(part.verifier is not None for part in result.parts)
        return _without_rewards(types, said, graded)
    try:
        score = score_of(rewards_of(rewards), reward)
    except ValueError as problem:
        return Judged(ExecutionOutcome.SCORER_FAILED, None, str(problem))
    if result.reward_valid is False:
        return Judged(_ended(types), None, f"{said}; its reward does not count in Harbor either")
    return Judged(_ended(types), score, said)


def _without_rewards(types: Sequence[str], said: str | None, graded: bool) -> Judged:
    if any(name in _VERIFIER_ERRORS for name in types):
        return Judged(ExecutionOutcome.SCORER_FAILED, None, said)
    if graded:
        # Of two errors Harbor keeps the first.
        after = f" after {said}" if said else ""
        return Judged(ExecutionOutcome.SCORER_FAILED, None, f"the verifier gave no reward{after}")
    return Judged(_ended(types), None, said or "it was not verified")


def _ended(types: Sequence[str]) -> ExecutionOutcome:
    if not types:
        return ExecutionOutcome.COMPLETED
    if any(name in _VERIFIER_ERRORS for name in types):
        return ExecutionOutcome.SCORER_FAILED
    return ExecutionOutcome.TIMED_OUT if "AgentTimeoutError" in types else ExecutionOutcome.FAILED


def _said(found: _Exception) -> str:
    message = " ".join(found.exception_message.split())[:_MOST_REASON]
    return f"{found.exception_type}: {message}" if message else found.exception_type
