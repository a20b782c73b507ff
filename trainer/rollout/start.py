"""From a job to a program that can be started: workspace filled, home furnished, everything told."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from gyre.elastic.process.supervised import GRACE_S, OUTPUT_LIMIT, Program, StartError
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.environment import environment, furnish
from gyre.trainer.rollout.harness import PRESETS, Launch, Setting, command
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.place import Place
from gyre.trainer.rollout.task import Task, prepare, resolve_env
from gyre.trainer.rollout.tree import copy_files


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
    return Program(
        argv=launch.argv,
        env=environment(setting, launch, temporary, more),
        cwd=place.workspace,
        stdin=launch.stdin or Path(os.devnull),
        stdout=place.stdout,
        stderr=place.stderr,
        output_limit=OUTPUT_LIMIT,
        file_limit=options.workspace_limit,
        grace_s=GRACE_S,
    )


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
