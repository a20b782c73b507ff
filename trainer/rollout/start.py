"""From a job to a program that can be started: workspace filled, home furnished, everything told."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gyre.elastic.process.supervised import GRACE_S, OUTPUT_LIMIT, Program, StartError
from gyre.trainer.rollout.confine import TEMPORARY, Cage, confined, process_limit
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.environment import environment, furnish
from gyre.trainer.rollout.harness import PRESETS, Launch, Setting, command
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.place import Place
from gyre.trainer.rollout.task import Task, prepare, resolve_env
from gyre.trainer.rollout.tree import copy_files
from gyre.trainer.rollout.visible import homes, readable


def prepared(job: Job, options: Options, control: Control, place: Place, temporary: Path) -> Program:
    """Make everything that the harness will find.

    Raises:
        TaskError: the task cannot be prepared.
        StartError: the harness is not installed.
        OSError: a file cannot be read or written.
    """
    _fill(place.workspace, job.task, options, control.logs)
    setting = Setting(
        execution=job.name,
        base_url=control.base_url(job.name),
        key=control.key(job.name),
        model=options.model,
        context=options.context,
        instruction=job.task.instruction if job.task else options.instruction,
        instruction_file=place.instruction,
        workspace=place.workspace,
        home=place.home,
    )
    launch = _launch(setting, options)
    furnish(setting, launch)
    more = {**(resolve_env(job.task.env, os.environ) if job.task else {}), **options.env}
    seen = TEMPORARY if options.confined else temporary
    env = environment(setting, launch, seen, more)
    argv = launch.argv
    if options.confined:
        argv = confined(argv, _cage(job, options, control, place, temporary, argv[0], env))
    return Program(
        argv=argv,
        env=env,
        cwd=place.workspace,
        stdin=launch.stdin or Path(os.devnull),
        stdout=place.stdout,
        stderr=place.stderr,
        output_limit=OUTPUT_LIMIT,
        file_limit=options.workspace_limit,
        memory_limit=options.memory or 0,
        process_limit=process_limit(options.processes or 0, options.confined),
        core_dumps=False,
        wraps=options.confined,
        grace_s=GRACE_S,
    )


def _cage(
    job: Job,
    options: Options,
    control: Control,
    place: Place,
    temporary: Path,
    program: str,
    env: Mapping[str, str],
) -> Cage:
    """Its own folders, and of what is hidden what it takes to run it."""
    values = [part for value in options.env.values() for part in value.split(":")]
    return Cage(
        workdir=place.workspace,
        writable=[place.workspace, place.home],
        temporary=temporary,
        hidden=hidden(job, options, control.logs),
        readable=[place.instruction, *readable(program, options.command, env["PATH"], values)],
    )


def hidden(job: Job, options: Options, logs: Path | None) -> list[Path]:
    """What is not for an agent to read: the user's files, other executions, the log, how a task is scored."""
    folders = [options.runs, *options.hidden, *homes(), *([logs] if logs else [])]
    return [*folders, job.task.folder] if job.task else folders


def scorer_cage(job: Job, options: Options, control: Control, place: Place, folder: Path) -> Cage:
    """For a scorer, which may run what the harness wrote: it writes in folders of `folder`.

    Not in that itself: what the scorer is seen to say lies there.
    """
    values = [part for value in options.scorer_env.values() for part in value.split(":")]
    return Cage(
        workdir=folder / "workspace",
        writable=[path for name in ("workspace", "rewards", "tests") if (path := folder / name).exists()],
        temporary=folder / "tmp",
        hidden=hidden(job, options, control.logs),
        readable=[
            place.stdout,
            *readable("/bin/sh", _words(options.score or ""), os.environ.get("PATH", ""), values),
        ],
    )


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []  # no sense to a shell either


def _fill(workspace: Path, task: Task | None, options: Options, logs: Path | None) -> None:
    if task is not None:
        prepare(task, workspace)
    elif options.workspace is not None:
        # Other executions, what they said and what they were worth are not for an agent to read.
        copy_files(options.workspace, workspace, (options.runs, *((logs,) if logs else ())))
    else:
        workspace.mkdir()


def _launch(setting: Setting, options: Options) -> Launch:
    """Raises StartError where the program is not installed."""
    path = options.env.get("PATH")
    if options.harness is None:
        launch = command(setting, options.command)
        return replace(launch, argv=[_found(launch.argv[0], path), *launch.argv[1:]])
    preset = PRESETS[options.harness]
    hint = f"install it: {preset.install}; or say where it is with `--harness-path`"
    return preset.launch(setting, _found(options.program or preset.program, path, hint), options.command)


def _found(program: str, path: str | None, hint: str = "") -> str:
    """Where it is. What holds a `/` is a path from where we are, as a shell takes it."""
    found = shutil.which(program, path=path)
    if found is None:
        raise StartError(f"`{program}` is not installed", hint)
    return os.path.abspath(found)
