"""The `gyre` command: registers the commands and turns errors into `error:` and `hint:`.

Command modules import only typer when they are loaded; what they need is imported by the command
that runs, so that `gyre --help` is instant. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from gyre.cli import output
from gyre.cli.doctor import doctor
from gyre.cli.engine import engine
from gyre.cli.log import app as log
from gyre.cli.proxy import proxy
from gyre.proxy.errors import GyreError

app = typer.Typer(
    name="gyre",
    help="Record long agent runs with exact token ids, rebuild them as trees, train on them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gyre {version('gyre-rl')}")
        raise typer.Exit


@app.callback()
def common(
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    output.install_logging()


app.command()(proxy)
app.command()(engine)
app.command()(doctor)
app.add_typer(log)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point: like `app`, but an error of ours is a message and not a traceback."""
    try:
        app(args=args, prog_name="gyre")
    except GyreError as error:
        if output.wants_traceback():
            traceback.print_exception(error)
        output.print_error(error)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
