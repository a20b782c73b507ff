"""A task: what is to be done, how long it may take, what the work starts from, how it is judged.

Folders are in Harbor's format:

    task.toml               limits, metadata, environment variables
    instruction.md          what the agent is told
    environment/            a Dockerfile, and files that it copies
    tests/test.sh           writes a reward
    solution/solve.sh       for people and tests

gyre starts no containers. `needs_container` says why a task cannot run in a folder of this machine. Harbor
runs those, and `gyre log import-harbor` takes its scores.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.proxy.errors import GyreError
from gyre.trainer.rollout.harbor_local import Start, without_container
from gyre.trainer.rollout.harbor_toml import parse_toml
from gyre.trainer.rollout.tree import copy_files

TOML, INSTRUCTION, TEST = "task.toml", "instruction.md", "tests/test.sh"
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


class TaskError(GyreError, ValueError):
    """A task cannot be read or run; the message names its folder, the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task folder, read."""

    name: str
    """As in Harbor's results: `[task] name`, else the folder's name. May hold a `/`."""
    folder: Path
    instruction: str
    timeout_s: float | None = None
    """How long the harness may take; None: no limit of its own."""
    verifier_timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    """For the harness, from task.toml and Dockerfile; `resolve_env` fills in what comes from outside."""
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """`[metadata]` as it stands: difficulty, category, tags, whatever its author wrote."""
    starts: tuple[Start, ...] = ()
    """What the workspace starts with."""
    needs_container: str | None = None
    """Why it cannot run in a folder of this machine."""
    notes: tuple[str, ...] = ()
    """What may be wrong in task.toml."""

    @property
    def short_name(self) -> str:
        """The folder's name: what Harbor builds the names of its trials from."""
        return self.folder.name

    @property
    def difficulty(self) -> str | None:
        found = self.metadata.get("difficulty")
        return None if found is None else str(found)

    @property
    def tests(self) -> Path:
        """The folder with `test.sh`.

        Raises:
            TaskError: it has none.
        """
        if not (self.folder / TEST).is_file():
            raise TaskError(f"task `{self.folder}` has no `{TEST}`", "say how it is scored with `--score`")
        return (self.folder / TEST).parent


def find_tasks(folder: Path) -> list[Path]:
    """The task folders directly in `folder`, by name; `folder` itself when it is a task.

    Raises:
        TaskError: there is none.
    """
    if not folder.is_dir():
        raise TaskError(f"`{folder}` is no folder")
    if _looks_like_task(folder):
        return [folder]
    found = sorted(path for path in folder.iterdir() if _looks_like_task(path))
    if not found:
        raise TaskError(f"no tasks in `{folder}`", f"a task is a folder with `{TOML}` and `{INSTRUCTION}`")
    return found


def _looks_like_task(folder: Path) -> bool:
    """Also one that lacks a file: it is to be named, not passed over."""
    return any((folder / name).is_file() for name in (TOML, INSTRUCTION, TEST))


def load_task(folder: Path) -> Task:
    """Read a task folder.

    Raises:
        TaskError: a file is missing, cannot be read or says what cannot be.
    """
    # As it is called here: two links may lead to folders of one name.
    folder = Path(os.path.abspath(folder))
    text = _text(folder, TOML)
    try:
        toml, notes = parse_toml(text)
        local = without_container(folder, toml)
    except ValueError as problem:
        raise TaskError(f"task `{folder}`: `{TOML}`: {problem}") from None
    except OSError as problem:
        raise TaskError(f"task `{folder}`: `{problem.filename}`: {problem.strerror}") from None
    # The instructions of a task in steps stand with its steps.
    instruction = "" if toml.steps else _without_canary(_text(folder, INSTRUCTION))
    if not toml.steps and not instruction.strip():
        raise TaskError(f"task `{folder}`: `{INSTRUCTION}` is empty")
    return Task(
        name=toml.task.name or folder.name,
        folder=folder,
        instruction=instruction,
        timeout_s=toml.agent.timeout_sec,
        verifier_timeout_s=toml.verifier.timeout_sec,
        env=local.env | toml.environment.env,
        verifier_env=toml.verifier.env,
        metadata=toml.metadata,
        starts=tuple(local.starts),
        needs_container=local.reason,
        notes=tuple(notes),
    )


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = f"a task is a folder with `{TOML}` and `{INSTRUCTION}`"
        raise TaskError(f"task `{folder}` has no `{name}`", hint) from None
    except OSError as problem:
        raise TaskError(f"task `{folder}`: cannot read `{name}`: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise TaskError(f"task `{folder}`: `{name}` is no UTF-8") from None


def _without_canary(text: str) -> str:
    """Benchmarks mark their files for those who filter training data; agents are not shown the mark."""
    lines = text.split("\n")
    first = 0
    while first < len(lines) and _CANARY.fullmatch(lines[first].strip()):
        first += 1
    return "\n".join(lines[first:]).lstrip("\n") if first else text


def prepare(task: Task, workspace: Path) -> None:
    """Make `workspace`, an empty or new folder, what the task starts from.

    Raises:
        TaskError: the task needs a container, or its files cannot be copied.
    """
    if task.needs_container:
        hint = "Harbor runs it; `gyre log import-harbor` takes its scores"
        raise TaskError(f"task `{task.folder}` needs a container: {task.needs_container}", hint)
    workspace.mkdir(parents=True, exist_ok=True)
    for start in task.starts:
        try:
            _copy(start, workspace / start.target)
        except OSError as problem:
            raise TaskError(f"task `{task.folder}`: cannot copy `{start.source}`: {problem}") from None


def _copy(start: Start, target: Path) -> None:
    if start.source.is_dir():
        copy_files(start.source, target)
        return
    place = target / start.source.name if start.into else target
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(start.source, place)


def resolve_env(wanted: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Values that are `${NAME}` or `${NAME:-default}` are taken from `outside`; others stay.

    Raises:
        TaskError: `outside` has no such name and there is no default.
    """
    resolved = {}
    for key, value in wanted.items():
        template = _TEMPLATE.fullmatch(value)
        found = outside.get(template[1], template[2]) if template else value
        if found is None:
            hint = f"set `{template[1]}`" if template else ""
            raise TaskError(f"the task's variable `{key}` is `{value}`, which is not set here", hint)
        resolved[key] = found
    return resolved
