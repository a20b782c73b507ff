"""`gyre log score`: say how good an execution's work is, or why that cannot be said."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gyre.cli import output

SCHEMA = 1


class Outcome(StrEnum):
    """How the execution ended."""

    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    NO_ARTIFACT = "no_artifact"
    RUN_TIMEOUT = "run_timeout"
    SCORER_FAILED = "scorer_failed"


def score(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that `gyre proxy --logs` writes.")
    ],
    execution: Annotated[
        str | None, typer.Option("--execution", "-x", help="Whose score it is.", show_default=False)
    ] = None,
    score: Annotated[
        float | None, typer.Option(help="A finite number; a group's scores are compared.", show_default=False)
    ] = None,
    artifact: Annotated[
        str | None, typer.Option(help="Where the work lies that was scored.", show_default=False)
    ] = None,
    outcome: Annotated[
        Outcome | None,
        typer.Option(help="How it ended, if that is not in the log yet.", show_default=False),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Executions that it is compared with.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option(help="The problem it worked on.", show_default=False)] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Which attempt of that name.", show_default="the last")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why this score, or why none, in words.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Many at once instead: JSONL, CSV or Parquet, see docs.", show_default=False),
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Record the score of an execution, while a proxy writes the log or later.

    What an execution that timed out left behind is scored like any other. One that left nothing:
    `--outcome no_artifact`, which counts as 0. The last score that was recorded counts.
    """
    from gyre.proxy.log.score import write_scores
    from gyre.proxy.scores import Scored
    from gyre.treebuilder.scores_file import read_scores

    ended = outcome.value if outcome else None
    said = (attempt, score, ended, task, group, artifact, reason)
    if file is not None:
        if execution is not None or any(value is not None for value in said):
            raise typer.BadParameter("with `--file` everything that is said stands in its columns")
        scores = list(read_scores(file).values())
    elif execution is not None:
        scores = [Scored(execution, *said)]
    else:
        raise typer.BadParameter("give `--execution`, or many with `--file`")
    written = write_scores(directory, scores)
    if json:
        output.print_json({"schema": SCHEMA, "written": [one._asdict() for one in written]})
        return
    by_proxy = sum(one.by == "proxy" for one in written)
    output.say(f"{len(written):,} recorded" + (f", {by_proxy:,} by the running proxy" if by_proxy else ""))
