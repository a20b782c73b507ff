"""`gyre run`: a harness on a task, recorded and scored; once, or many times on many tasks."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gyre.cli import output
from gyre.cli.stop import Stop, interruptible
from gyre.cli.units import bytes_of, seconds_of
from gyre.trainer.rollout.harness import Harness, wants

if TYPE_CHECKING:
    from gyre.trainer.rollout.control import Control
    from gyre.trainer.rollout.job import Options

_N, _AT_ONCE = 16, 4


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="The harness; with `--harness` more arguments for it. {base_url}, {anthropic_url}, {model}, "
            "{api_key}, {instruction}, {instruction_file}, {workspace}, {execution} are filled in. "
            "Whoever may list processes sees {api_key}; OPENAI_API_KEY says the same.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="Task folder in Harbor's format.", show_default=False)
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Folder of task folders: a group of each.", show_default=False)
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", "-n", min=1, help="Executions of each task.", show_default=f"{_N} with --tasks"),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Executions at once.")] = _AT_ONCE,
    harness: Annotated[
        Harness | None, typer.Option(help="An agent that gyre knows how to start.", show_default=False)
    ] = None,
    harness_path: Annotated[
        str | None, typer.Option(help="Its executable.", show_default="from PATH")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for.", show_default="the engine's only one")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens that fit the model: when agents compact.", show_default="as the engine says"
        ),
    ] = None,
    instruction: Annotated[
        str, typer.Option(help="What to do, where there is no task.", show_default=False)
    ] = "",
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of an engine, to run under a proxy of its own; may be repeated.", show_default=False
        ),
    ] = None,
    logs: Annotated[
        Path, typer.Option(help="Log: its running proxy is used, or with `--upstream` one is started.")
    ] = Path("logs"),
    proxy: Annotated[
        str | None,
        typer.Option(help="URL of a running proxy, instead of `--logs`.", show_default=False),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder for workspaces and outputs.")] = Path("runs"),
    execution: Annotated[
        str | None, typer.Option("--execution", "-x", help="Its name.", show_default="made up")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Executions that it is compared with; with `--tasks` put before their names.",
            show_default="the task",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(help="For the harness: 90s, 30m, 2h.", show_default="the task's, else 2h"),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help="Shell command that prints a score.", show_default="the task's tests"),
    ] = None,
    score_timeout: Annotated[
        str | None, typer.Option(help="For the scorer.", show_default="the task's, else 10m")
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            help="Folder to work on a copy of, where there is no task.",
            exists=True,
            file_okay=False,
            show_default="empty",
        ),
    ] = None,
    workspace_limit: Annotated[str, typer.Option(help="Room that an execution's files may take.")] = "8GB",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Variable for the harness; may be repeated.", show_default=False),
    ] = None,
    keep_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Variable of yours that it gets too; may be repeated.", show_default=False
        ),
    ] = None,
    evaluation: Annotated[bool, typer.Option("--evaluation", help="Never to be trained on.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what failed, score again what was not scored.")
    ] = False,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Run a harness under a proxy: workspace, time limit, outcome and score included.

    With `--tasks` or `--n` many times; started again after Ctrl-C it goes on where it stopped.
    """
    from gyre.trainer.rollout.job import Options

    many = tasks is not None or n is not None
    _require(not (task and tasks), "give `--task` or `--tasks`")
    _require(bool(task or tasks) or n is None, "`--n` needs `--task` or `--tasks`")
    _require(not many or execution is None, "executions of a group are named after its task")
    _require(many or not retry_failed, "`--retry-failed` is for `--tasks` and `--n`")
    _require(not (task or tasks) or not (workspace or instruction), "the task says what to do, and on what")
    _require(bool(harness or command), "give a command after `--`, or `--harness`")
    _require(not harness or bool(task or tasks or instruction.strip()), "give `--task` or `--instruction`")
    _require(bool(harness) or harness_path is None, "`--harness-path` needs `--harness`")
    ours = (runs.resolve(), logs.resolve())
    _require(not workspace or workspace.resolve() not in ours, "`--workspace` is the folder of runs or log")
    _require(not (proxy and upstream), "a proxy that runs has its engines: leave out `--upstream`")
    options = Options(
        runs=runs.resolve(),
        harness=harness,
        program=harness_path,
        command=command or [],
        model=model or "",
        context=context,
        instruction=instruction,
        workspace=workspace.resolve() if workspace else None,
        timeout_s=seconds_of(timeout, "--timeout") if timeout else None,
        score=score,
        score_timeout_s=seconds_of(score_timeout, "--score-timeout") if score_timeout else None,
        env=_env(env or [], keep_env or []),
        workspace_limit=bytes_of(workspace_limit, "--workspace-limit"),
        evaluation=evaluation or None,
    )
    where = Where(proxy, upstream or [], logs.resolve())
    with interruptible("ending what runs; again: at once") as stop:
        if many:
            folder = tasks or task
            assert folder
            code = _many(folder, n or _N, group or "", options, where, stop, jobs, retry_failed, json)
        else:
            code = _one(task, options, where, stop, execution, group, json)
    raise typer.Exit(stop.code or code)


def _one(
    folder: Path | None,
    options: Options,
    where: Where,
    stop: Stop,
    execution: str | None,
    group: str | None,
    json: bool,
) -> int:
    from gyre.cli.run_report import exit_code, print_states
    from gyre.proxy.executions import ExecutionOutcome
    from gyre.proxy.identity import checked_name
    from gyre.trainer.rollout.group import checked_task, slug
    from gyre.trainer.rollout.job import Job
    from gyre.trainer.rollout.place import checked_folder
    from gyre.trainer.rollout.record import Record
    from gyre.trainer.rollout.run import run_execution

    task = checked_task(folder, options) if folder else None
    about = slug(task.short_name if task else options.called)
    name = checked_folder(checked_name(execution or f"{about}-{secrets.token_hex(4)}", "`--execution`"))
    with where.control(options.runs, stop) as control:
        options = with_model(options, control)
        output.say(f"running `{name}` in {options.runs / name}")
        state = run_execution(Job(name, task, group), options, Record(control), stop)
    print_states([state], [], json=json)
    return 1 if state.outcome is ExecutionOutcome.FAILED else exit_code([state])


def _many(
    folder: Path,
    n: int,
    prefix: str,
    options: Options,
    where: Where,
    stop: Stop,
    at_once: int,
    retry_failed: bool,
    json: bool,
) -> int:
    from gyre.cli.run_report import exit_code, print_groups, print_states, told
    from gyre.proxy.process import allow_open_files
    from gyre.trainer.rollout.group import Result, plan, run_jobs
    from gyre.trainer.rollout.place import locked
    from gyre.trainer.rollout.record import Record
    from gyre.trainer.rollout.task import find_tasks

    made = plan(find_tasks(folder), n, options, prefix)
    for note in made.notes:
        output.say(f"note: {note}")
    for broken in made.broken:
        output.print_error(broken)
    result = Result()
    allow_open_files()  # each execution takes some
    if made.jobs:
        with locked(options.runs, f"`{options.runs}`"), where.control(options.runs, stop) as control:
            options = with_model(options, control)
            with told() as tell:
                result = run_jobs(
                    made.jobs,
                    options,
                    Record(control),
                    stop,
                    at_once=at_once,
                    retry_failed=retry_failed,
                    tell=tell,
                )
    problems = [*made.broken, *(problem for _, problem in result.failures)]
    problems += [result.gone] if result.gone else []
    for problem in problems[len(made.broken) :]:
        output.print_error(problem)
    if json:
        print_states(result.states, problems, json=True)
    else:
        print_groups(result.states)
    return 1 if problems else exit_code(result.states)


@dataclass(frozen=True)
class Where:
    """The proxy that the user means."""

    url: str | None
    upstream: Sequence[str]
    logs: Path

    @contextmanager
    def control(self, runs: Path, stop: Stop) -> Iterator[Control]:
        """It, or one that is started for the length of the block."""
        from gyre.trainer.rollout.private import private_proxy, proxy_of, running_proxy

        if self.upstream:
            with private_proxy(self.upstream, self.logs, runs) as control:
                output.say(f"proxy ready: {control.url}, log in {self.logs}")
                yield control
        else:
            yield running_proxy(self.url) if self.url else proxy_of(self.logs)


def with_model(options: Options, control: Control) -> Options:
    """With the engine's only model, and the tokens that fit it, where the user does not say."""
    if not (options.harness or wants(options.command, "model")):
        return options
    if options.model and (options.context or not options.harness):
        return options
    model = control.model(options.model)
    return replace(options, model=options.model or model.name, context=options.context or model.context)


def _require(sense: bool, message: str) -> None:
    if not sense:
        raise typer.BadParameter(message)


def _env(given: Sequence[str], kept: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in kept:
        _require(name in os.environ, f"`--keep-env {name}`: it is not set")
        found[name] = os.environ[name]
    for pair in given:
        name, equals, value = pair.partition("=")
        _require(bool(name and equals), f"`--env {pair}`: give NAME=VALUE")
        found[name] = value
    return found
