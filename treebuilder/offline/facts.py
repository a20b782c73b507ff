"""What was said of executions: task, group, outcome, score. Pure; the log's events and scores in.

The last word counts. Task, group and evaluation are said of a name and hold for its later attempts;
outcome and score are of one attempt. A `scored` event is the whole truth about scoring: a scorer that
failed and then succeeded did not fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.treebuilder.score import AttemptKey, Scores, said_of

_IMPLIED = {
    ExecutionEvent.ENDED: ExecutionOutcome.COMPLETED.value,
    ExecutionEvent.TIMED_OUT: ExecutionOutcome.TIMED_OUT.value,
}
_OF_SCORING = (ExecutionOutcome.NO_ARTIFACT, ExecutionOutcome.SCORER_FAILED)
"""Outcomes that a later score takes back."""


@dataclass(frozen=True, slots=True)
class Facts:
    task: str | None = None
    group: str | None = None
    evaluation: bool = False
    ended: str | None = None
    """Outcome by its end."""
    judged: str | None = None
    """Outcome by its scorer, which outweighs that."""
    score: float | None = None
    artifact: str | None = None
    reason: str | None = None

    @property
    def outcome(self) -> str | None:
        return self.judged or self.ended


def facts_of(
    events: Iterable[Mapping[str, Any]], attempts: Iterable[AttemptKey], scores: Scores
) -> dict[AttemptKey, Facts]:
    """The facts of each of `attempts`; `events` are rows of the log in commit order."""
    said: dict[AttemptKey, list[Mapping[str, Any]]] = {}
    for event in events:
        said.setdefault((event["execution_id"], event["execution_attempt"]), []).append(event)
    facts: dict[AttemptKey, Facts] = {}
    before: dict[str, Facts] = {}
    keys = sorted(attempts)
    last = dict(keys)
    for key in keys:
        name, attempt = key
        known = before.get(name, Facts())
        known = Facts(task=known.task, group=known.group, evaluation=known.evaluation)
        for event in said.get(key, ()):
            known = _told(known, event)
        before[name] = known
        facts[key] = _scored(known, scores, name, attempt, attempt == last[name])
    return facts


def _told(known: Facts, event: Mapping[str, Any]) -> Facts:
    known = _belonging(known, event["task"], event["group"])
    if event["evaluation"] is not None:
        known = replace(known, evaluation=event["evaluation"])
    known = _explained(known, event["artifact"], event["reason"])
    if event["event"] == ExecutionEvent.SCORED:
        return _judged(known, event["score"], event["outcome"])
    ended = event["outcome"] or _IMPLIED.get(event["event"]) or known.ended
    score = known.score if event["score"] is None else event["score"]
    return replace(known, ended=ended, score=score)


def _scored(known: Facts, scores: Scores, name: str, attempt: int, last: bool) -> Facts:
    """Scores that the build was given outweigh those of the log."""
    said = said_of(scores, name, attempt, last)
    if said is None:
        return known
    known = _explained(_belonging(known, said.task, said.group), said.artifact, said.reason)
    if said.score is None and said.outcome is None:
        return known
    return _judged(known, said.score, said.outcome)


def _belonging(known: Facts, task: str | None, group: str | None) -> Facts:
    return replace(
        known,
        task=known.task if task is None else task,
        group=known.group if group is None else group,
    )


def _explained(known: Facts, artifact: str | None, reason: str | None) -> Facts:
    return replace(
        known,
        artifact=known.artifact if artifact is None else artifact,
        reason=known.reason if reason is None else reason,
    )


def _judged(known: Facts, score: float | None, outcome: str | None) -> Facts:
    if outcome is None and score is not None and known.judged not in _OF_SCORING:
        outcome = known.judged
    return replace(known, score=score, judged=outcome)
