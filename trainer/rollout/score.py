"""What an execution's work is worth: a scorer run on a copy of the workspace, with a limit and a retry.

A scorer is a shell command or a task's `tests/test.sh`. It finds in its environment:

    GYRE_WORKSPACE      the copy it may change as it likes; also its working directory
    GYRE_REWARD_DIR     an empty folder: `reward.txt` with a number, or `reward.json` with numbers by name
    GYRE_TESTS_DIR      a copy of the task's `tests/`, for `test.sh` only

and whatever the caller adds. A command may print its score instead: the last line of stdout that is a number.
As in Harbor, `reward.json` outweighs `reward.txt`, and the exit code of `test.sh` says nothing.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gyre.elastic.process.left import read_end
from gyre.elastic.process.supervised import Program, Report, StartError, Supervised
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.rollout.confine import TEMPORARY, Cage, confined, process_limit
from gyre.trainer.rollout.environment import plain_env
from gyre.trainer.rollout.place import bytes_below, size
from gyre.trainer.rollout.rewards import printed_reward, read_rewards, score_of
from gyre.trainer.rollout.room import is_full, require_room
from gyre.trainer.rollout.secret import NO_SECRETS, Secrets
from gyre.trainer.rollout.task import Task, resolve_env
from gyre.trainer.rollout.tree import copy_files, copy_tree, remove_tree
from gyre.trainer.rollout.watch import Quota

_OUTPUT_LIMIT = 1_000_000
"""Bytes that are kept of what a scorer prints."""
_GRACE_S = 2.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command; it fails when its exit code is not 0."""

    text: str


@dataclass(frozen=True, slots=True)
class TaskTests:
    """A task's `tests/` folder with its `test.sh`."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)


Scorer = Command | TaskTests


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score, or why there is none."""

    score: float | None
    outcome: ExecutionOutcome | None = None
    """`scorer_failed`, or None: then the execution's own outcome stands."""
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """`tries`, `seconds`, `rewards` by name, `failures`, `not_copied`."""
    looked: bool = False
    """Whether the scorer came to its own end: then it found nothing, and did not merely fail to look."""


class _Failure(Exception):
    """Why one try gave no score."""


def own_scorer(task: Task, outside: Mapping[str, str]) -> TaskTests:
    """The task's own scorer.

    Raises:
        TaskError: it has none, or wants a variable that `outside` has not.
    """
    return TaskTests(task.tests, resolve_env(task.verifier_env, outside))


def run_scorer(
    scorer: Scorer,
    workspace: Path,
    logs: Path,
    timeout_s: float,
    tries: int = 2,
    *,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    secrets: Secrets = NO_SECRETS,
    cage: Callable[[Path], Cage] | None = None,
    memory: int | None = None,
    processes: int | None = None,
    room: int | None = None,
) -> Verdict:
    """Score what lies in `workspace`, which is left as it is. Never raises for what a scorer does.

    Args:
        logs: a folder per try goes here, with what the scorer printed and the rewards it wrote.
        timeout_s: for each try.
        env: variables for the scorer, beside those of this process where it is not confined.
        stop: when it is set the scorer is ended; the verdict then has neither score nor outcome.
        secrets: what the verdict may not say.
        cage: for a try in that folder; None: unconfined.
        memory: bytes of address space that each of its processes may have; None: any.
        processes: how many it may have at once; None: any.
        room: bytes that its files may take beside the copy; None: any.

    Raises:
        RoomError: the disk has no room for a copy of `workspace`.
        OSError: the disk is full. What a scorer says then means nothing.
    """
    shared = env or {}, stop or threading.Event(), secrets, cage, memory or 0, processes or 0, room
    setting = _Setting(scorer, workspace, timeout_s, *shared)
    failures: list[str] = []
    looked = False
    details: dict[str, Any] = {"tries": 0, "seconds": 0.0, "failures": failures}
    while details["tries"] < tries:
        details["tries"] += 1
        folder = logs / f"try-{details['tries']}"
        looked = False
        try:
            report = _try(setting, folder, details)
            if report is None:
                return Verdict(None, None, "the scorer was stopped", details)
            looked = report.code is not None and not report.lost and not report.crowded
            rewards = _rewards(setting, report, folder, folder / "rewards")
            return Verdict(score_of(rewards), None, "", details | {"rewards": rewards}, looked)
        except (_Failure, StartError, ValueError) as problem:
            failures.append(secrets.hide(str(problem)))
        except OSError as problem:
            if is_full(problem):
                raise
            failures.append(secrets.hide(f"{problem.filename or folder}: {problem.strerror or problem}"))
    reason = f"{failures[-1]} (in each of {tries} tries)" if len(set(failures)) == 1 < tries else failures[-1]
    return Verdict(None, ExecutionOutcome.SCORER_FAILED, reason, details, looked)


class _Setting(NamedTuple):
    """What every try has in common."""

    scorer: Scorer
    workspace: Path
    timeout_s: float
    env: Mapping[str, str]
    stop: threading.Event
    secrets: Secrets
    cage: Callable[[Path], Cage] | None
    memory: int
    processes: int
    room: int | None


def _try(setting: _Setting, folder: Path, details: dict[str, Any]) -> Report | None:
    """One run on a fresh copy; None when it was stopped."""
    remove_tree(folder)
    work, rewards = folder / "workspace", folder / "rewards"
    rewards.mkdir(parents=True)
    try:
        copied = bytes_below(setting.workspace)
        require_room(folder, beside=copied)
        details["not_copied"] = copy_tree(setting.workspace, work, setting.stop)
        if setting.stop.is_set():
            return None
        env = {**setting.env, "GYRE_WORKSPACE": str(work), "GYRE_REWARD_DIR": str(rewards)}
        quota = None if setting.room is None else Quota(setting.room + copied, [folder])
        report = _run(setting, _command(setting.scorer, folder, env), env, folder, quota)
        require_room(folder)  # as long as what it wrote is there
    finally:
        remove_tree(work)
        remove_tree(folder / "tests")
        remove_tree(folder / "tmp")
    if report is not None:
        details["seconds"] += report.seconds
    return report


def _run(
    setting: _Setting, command: list[str], env: Mapping[str, str], folder: Path, quota: Quota | None
) -> Report | None:
    if setting.cage is None:
        env = os.environ | dict(env)
    else:
        # It may run what the harness wrote: our keys are not for that.
        (folder / "tmp").mkdir()
        command = confined(command, setting.cage(folder))
        env = plain_env(TEMPORARY, TEMPORARY, folder / "workspace") | dict(env)
    program = Program(
        argv=command,
        env=env,
        cwd=folder / "workspace",
        stdout=folder / "stdout.txt",
        stderr=folder / "stderr.txt",
        output_limit=_OUTPUT_LIMIT,
        file_limit=quota.limit if quota else 0,
        memory_limit=setting.memory,
        process_limit=process_limit(setting.processes, setting.cage is not None),
        grace_s=_GRACE_S,
        wraps=setting.cage is not None,
    )
    end = time.monotonic() + setting.timeout_s
    with Supervised(program) as running:
        while (report := running.wait(min(_POLL_S, max(0.0, end - time.monotonic())))) is None:
            if setting.stop.is_set():
                return None
            if time.monotonic() >= end:
                raise _Failure(f"the scorer was not done after {setting.timeout_s:g} s")
            if quota and quota.exceeded():
                raise _Failure(f"the scorer's files took {size(quota.bytes)}, more than {size(quota.limit)}")
    return report


def _command(scorer: Scorer, folder: Path, env: dict[str, str]) -> list[str]:
    """What to run; adds to `env` what a task's tests are to find there."""
    if isinstance(scorer, Command):
        return ["/bin/sh", "-c", scorer.text]
    tests = folder / "tests"
    copy_files(scorer.folder, tests)
    script = tests / "test.sh"
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IRUSR)
    env |= {**scorer.env, "GYRE_TESTS_DIR": str(tests)}
    # Through a shell: a script without its `#!` line runs as well, as it does in Harbor.
    return ["/bin/sh", "-c", '"$GYRE_TESTS_DIR/test.sh"']


def _rewards(setting: _Setting, report: Report, folder: Path, rewards: Path) -> dict[str, float]:
    scorer, secrets = setting.scorer, setting.secrets
    if report.lost:
        raise _Failure("somebody killed the scorer")
    if report.crowded:
        raise _Failure(f"the scorer had more than {setting.processes} processes")
    how = f"signal {report.signal}" if report.code is None else f"exit code {report.code}"
    crashed = report.code != 0
    if crashed and isinstance(scorer, Command):
        raise _Failure(f"the scorer failed: {how}{_last_words(folder, secrets)}")
    found = read_rewards(rewards, secrets)
    if found is None and isinstance(scorer, Command):
        found = printed_reward(folder / "stdout.txt")
    if found is None:
        missing = "printed no number and wrote" if isinstance(scorer, Command) else "wrote"
        ending = f" ({how}{_last_words(folder, secrets)})" if crashed else ""
        raise _Failure(f"the scorer {missing} no reward{ending}")
    return found


def _last_words(folder: Path, secrets: Secrets) -> str:
    """The last line on stderr or stdout, which mostly says what was wrong."""
    for name in ("stderr.txt", "stdout.txt"):
        said = read_end(folder / name, 2 * _OUTPUT_LIMIT) or b""
        lines = said.decode(errors="replace").strip().splitlines()
        if lines:
            return f": {secrets.hide(lines[-1].strip())[:200]}"
    return ""
