"""Outcomes and scores of a Harbor job into a log. Doing it twice changes nothing."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gyre.proxy.log.findings import Finding, Severity, error, note
from gyre.proxy.log.score import Written, write_scores
from gyre.proxy.scores import Scored
from gyre.trainer.rollout.harbor_job import HarborError, Job, Trial, read_job
from gyre.trainer.rollout.harbor_match import Known, Match, match, read_known

FIELDS = ("task", "agent", "model", "job")
"""What a group can be named after."""


class State(StrEnum):
    """What came of a trial."""

    RECORDED = "recorded"
    UNCHANGED = "unchanged"
    """All that it says was in the log."""
    UNMATCHED = "unmatched"
    """No execution of the log is this trial."""
    UNDECIDED = "undecided"
    """It could be several, or was tried more than once."""


@dataclass(frozen=True, slots=True)
class Imported:
    """One trial."""

    trial: str
    state: State
    by: str | None
    scored: Scored | None
    """What is said of its execution; None without one."""


@dataclass(frozen=True, slots=True)
class Import:
    """All that came of it."""

    trials: list[Imported]
    findings: list[Finding]
    left: list[str]
    """Executions without a trial that nothing has been said of yet."""
    written: list[Written]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == Severity.ERROR for finding in self.findings)


def import_job(
    logs: Path, folder: Path, *, group: str = "{task}", reward: str = "reward", dry_run: bool = False
) -> Import:
    """Record what the trials of a job say of the executions of a log.

    Args:
        group: what the executions that are compared with each other have in common: a text with
            `{task}`, `{agent}`, `{model}` and `{job}`.
        reward: the one that counts where a verifier gives several.
        dry_run: write nothing.

    Raises:
        HarborError: `folder` is no job, or `group` names something else.
        LogError: the log cannot be read or written.
    """
    _require_fields(group)
    job = read_job(folder, reward)
    known = read_known(logs)
    matches = match(job, known)
    trials = [_imported(job, found, known, group) for found in matches]
    new = [one.scored for one in trials if one.scored and one.state == State.RECORDED]
    written = write_scores(logs, new) if new and not dry_run else []
    taken = {found.execution for found in matches}
    left = sorted(name for name, one in known.items() if name not in taken and _is_open(one))
    return Import(trials, [*job.findings, *_findings(matches)], left, written)


def _require_fields(group: str) -> None:
    hint = f"it may hold {', '.join(f'{{{name}}}' for name in FIELDS)}"
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(group) if name is not None}
    except ValueError as problem:
        raise HarborError(f"`{group}` names no group: {problem}", hint) from None
    if not fields <= set(FIELDS) or not group:
        raise HarborError(f"`{group}` names no group", hint)


def _imported(job: Job, found: Match, known: Mapping[str, Known], group: str) -> Imported:
    trial = found.trial
    if found.execution is None:
        return Imported(trial.name, State.UNDECIDED if found.problem else State.UNMATCHED, None, None)
    scored = Scored(
        execution_id=found.execution,
        score=trial.judged.score,
        outcome=trial.judged.outcome.value,
        task=trial.task,
        group=group.format(task=trial.task, agent=trial.agent, model=trial.model, job=job.folder.name),
        artifact=_artifact(trial),
        reason=trial.judged.reason,
    )
    state = State.UNCHANGED if _says(known[found.execution], scored) else State.RECORDED
    return Imported(trial.name, state, found.by, scored)


def _artifact(trial: Trial) -> str:
    kept = trial.folder / "artifacts"
    return str(kept if kept.is_dir() else trial.folder)


def _says(known: Known, scored: Scored) -> bool:
    """Whether the log says it already; where the artifact lies now makes no difference."""
    facts = known.facts
    recorded = (facts.score, facts.judged, facts.task, facts.group, facts.reason)
    reason = facts.reason if scored.reason is None else scored.reason
    return recorded == (scored.score, scored.outcome, scored.task, scored.group, reason)


def _is_open(known: Known) -> bool:
    return known.facts.score is None and known.facts.judged is None


def _findings(matches: list[Match]) -> list[Finding]:
    found = []
    for one in matches:
        where = str(one.trial.folder)
        if one.problem:
            found.append(error("undecided_trial", where, one.problem))
        elif one.execution is None and one.trial.ran:
            found.append(error("unmatched_trial", where, "no execution of the log has its name or session"))
        elif one.execution is None:
            reason = one.trial.judged.reason or "no reason is given"
            found.append(note("agent_not_started", where, f"its agent was never started: {reason}"))
    return found
