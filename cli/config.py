"""`gyre config`: what a run file comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gyre.cli import output

SCHEMA = 1

app = typer.Typer(name="config", help="Run files of `gyre train`.", no_args_is_help=True)


@app.callback()
def common() -> None:
    """Run files of `gyre train`."""


@app.command()
def show(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file.", show_default=False)],
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Print a run file as it is resolved: every setting, paths absolute. It is a run file again."""
    from gyre.trainer.live.config import load_run, run_table, run_toml

    settings = load_run(run_file)
    if json:
        output.print_json({"schema": SCHEMA, "settings": run_table(settings)})
    else:
        print(run_toml(settings), end="")
