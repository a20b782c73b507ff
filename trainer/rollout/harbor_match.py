"""Which execution of a log is which trial of Harbor's.

By name, when the agent was given a URL, key or header of its own: the trial's name, or what Harbor calls the
agent's session, `<trial>__agent`. Else by the session id that the harness sent with its calls and wrote into
its own log, which Harbor keeps. What fits more than one is not decided.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.read import read_log
from gyre.trainer.rollout.harbor_job import Job, Trial
from gyre.treebuilder.offline.facts import Facts, facts_of

_COLUMNS = ("execution_id", "execution_attempt", "session_id", "started_at")
_IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[A-Za-z0-9][A-Za-z0-9_]{7,127}")
_MOST_FILES = 1_000
_MOST_BYTES = 1 << 16
"""Of each file: harnesses name their session at once."""


@dataclass(slots=True)
class Known:
    """What a log has of one execution: its last attempt."""

    attempt: int = 0
    facts: Facts = field(default_factory=Facts)
    first_call: datetime | None = None
    sessions: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Match:
    """A trial and its execution, or why it has none."""

    trial: Trial
    execution: str | None = None
    by: str | None = None
    """`name` or `session`"""
    problem: str | None = None
    """Why it is not decided; None for one that is simply not there."""


def read_known(logs: Path) -> dict[str, Known]:
    """The executions of a log, those of a running proxy included."""
    log = read_log(logs, columns=_COLUMNS)
    calls = log.calls.select(_COLUMNS)
    events = log.executions.to_pylist()
    known: dict[str, Known] = defaultdict(Known)
    firsts = calls.group_by(["execution_id", "execution_attempt"]).aggregate([("started_at", "min")])
    for row in firsts.sort_by("execution_attempt").to_pylist():
        one = known[row["execution_id"]]
        one.attempt, one.first_call = row["execution_attempt"], row["started_at_min"]
    for event in events:
        one = known[event["execution_id"]]
        if event["execution_attempt"] > one.attempt:
            one.attempt, one.first_call = event["execution_attempt"], None
    for name, session in _sessions(calls):
        known[name].sessions.add(session)
    facts = facts_of(events, [(name, one.attempt) for name, one in known.items()], {})
    for (name, _), said in facts.items():
        known[name].facts = said
    return dict(known)


def _sessions(calls: pa.Table) -> Iterator[tuple[str, str]]:
    pairs = calls.group_by(["execution_id", "session_id"]).aggregate([])
    for name, session in zip(values_of(pairs["execution_id"]), values_of(pairs["session_id"]), strict=True):
        if session is not None:
            yield name, session


def match(job: Job, known: Mapping[str, Known]) -> list[Match]:
    """Each trial with its execution; no execution is given to two."""
    named = [_by_name(trial, known) for trial in job.trials]
    taken = {found.execution for found in named}
    sessions: dict[str, set[str]] = defaultdict(set)
    for name, one in known.items():
        for session in one.sessions if name not in taken else ():
            sessions[session].add(name)
    found = [one if one.execution else _by_session(one.trial, sessions) for one in named]
    return _each_once([_of_one_try(one, known, job.retries) for one in found])


def _by_name(trial: Trial, known: Mapping[str, Known]) -> Match:
    for name in _names(trial):
        if name in known:
            return Match(trial, name, "name")
    return Match(trial)


def _names(trial: Trial) -> Iterator[str]:
    for name in (trial.name, trial.graded):
        if name is not None:
            yield execution_name(name)
            yield execution_name(f"{name}__agent")


def execution_name(trial: str) -> str:
    """A trial's name with only what names of executions may hold."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", trial)[:128]


def _by_session(trial: Trial, sessions: Mapping[str, Collection[str]]) -> Match:
    found = {name for session in session_ids(trial.folder, sessions) for name in sessions[session]}
    found |= set(sessions.get(f"{trial.name}__agent", ()))
    if len(found) == 1:
        return Match(trial, found.pop(), "session")
    if found:
        shown = ", ".join(f"`{name}`" for name in sorted(found))
        return Match(trial, problem=f"its sessions are several executions: {shown}")
    return Match(trial)


def session_ids(folder: Path, known: Collection[str]) -> set[str]:
    """Those of `known` that the agent's log of a trial names, in names of files or near their beginnings."""
    found: set[str] = set()
    if not known:
        return found
    for path in _agent_files(folder):
        found.update(_IDS.findall(path.name))
        if path.suffix in (".json", ".jsonl", ".log", ".txt"):
            with path.open("rb") as file:
                found.update(_IDS.findall(file.read(_MOST_BYTES).decode(errors="replace")))
    return found.intersection(known)


def _agent_files(folder: Path) -> list[Path]:
    """What agents logged; of very many files only the first."""
    found: list[Path] = []
    for top in (folder / "agent", *sorted((folder / "steps").glob("*/agent"))):
        for place, folders, names in os.walk(top):
            folders.sort()
            paths = [Path(place, name) for name in sorted(names)]
            found += [path for path in paths if os.path.isfile(path) and os.access(path, os.R_OK)]
    return found[:_MOST_FILES]


def _of_one_try(found: Match, known: Mapping[str, Known], retries: int) -> Match:
    """Harbor tries a trial again under the same name: its score is of the last try only."""
    if not (retries and found.execution and found.trial.started) or found.trial.graded:
        return found
    first = known[found.execution].first_call
    if first is None or first >= found.trial.started:
        return found
    problem = f"`{found.execution}` has calls from before it began: Harbor tried it more than once"
    return Match(found.trial, problem=problem)


def _each_once(found: Sequence[Match]) -> list[Match]:
    claims: dict[str, list[str]] = defaultdict(list)
    for one in found:
        if one.execution:
            claims[one.execution].append(one.trial.name)
    return [
        Match(one.trial, problem=f"`{one.execution}` fits several trials: {', '.join(claims[one.execution])}")
        if one.execution and len(claims[one.execution]) > 1
        else one
        for one in found
    ]
