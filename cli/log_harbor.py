"""`gyre log import-harbor`: outcomes and scores of a Harbor job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gyre.cli import output

if TYPE_CHECKING:
    from gyre.trainer.rollout.harbor_import import Import, Imported

SCHEMA = 1
_MOST_SHOWN = 20
"""Executions without a trial that are named on the terminal."""


def import_harbor(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that `gyre proxy --logs` writes.")
    ],
    job: Annotated[Path, typer.Argument(metavar="JOB_DIR", help="The folder of a job, as in `jobs/NAME`.")],
    group: Annotated[
        str, typer.Option(help="Executions that are compared: {task}, {agent}, {model}, {job} may occur.")
    ] = "{task}",
    reward: Annotated[
        str, typer.Option(help="The one that counts where a verifier gives several.")
    ] = "reward",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be recorded.")] = False,
    json: output.JsonOption = False,
) -> None:
    """Take outcomes and scores from a Harbor job whose agents were pointed at the proxy.

    A trial is the execution of its name, or the one that its agent's session is. Doing it again, also
    while the job runs, records only what is new. What does not fit is named, and the exit code is then 1.
    """
    from gyre.trainer.rollout.harbor_import import import_job

    done = import_job(directory, job, group=group, reward=reward, dry_run=dry_run)
    if json:
        output.print_json(_document(done))
    else:
        _print(done, dry_run)
    for finding in done.findings:
        output.say(f"{finding.severity}: {finding.where}: {finding.message}")
    if not done.ok:
        raise typer.Exit(1)


def _document(done: Import) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "trials": [_trial(one) for one in done.trials],
        "findings": [finding.as_dict() for finding in done.findings],
        "without_trial": done.left,
        "written": [one._asdict() for one in done.written],
    }


def _trial(one: Imported) -> dict[str, object]:
    said = one.scored
    return {
        "trial": one.trial,
        "state": one.state,
        "by": one.by,
        "execution": said and said.execution_id,
        "task": said and said.task,
        "group": said and said.group,
        "outcome": said and said.outcome,
        "score": said and said.score,
        "reason": said and said.reason,
    }


def _print(done: Import, dry_run: bool) -> None:
    columns = ("trial", "state", "by", "execution", "group", "outcome", "score", "reason")
    rows = [[_trial(one)[name] for name in columns] for one in done.trials]
    output.print_table("", columns, rows)
    if done.left:
        shown = ", ".join(done.left[:_MOST_SHOWN])
        more = f" and {len(done.left) - _MOST_SHOWN:,} more" if len(done.left) > _MOST_SHOWN else ""
        output.say(f"{output.counted(len(done.left), 'execution')} without a trial or score: {shown}{more}")
    by_proxy = sum(one.by == "proxy" for one in done.written)
    output.say(
        "nothing was recorded: a dry run"
        if dry_run
        else f"{len(done.written):,} recorded" + (f", {by_proxy:,} by the running proxy" if by_proxy else "")
    )
