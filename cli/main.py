"""The `gyre` command: registers the commands.

Command modules import only typer when they are loaded; what they need is imported by the command
that runs, so that `gyre --help` is instant.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from gyre.cli import entry, output
from gyre.cli.config import app as config
from gyre.cli.doctor import doctor
from gyre.cli.engine import engine
from gyre.cli.log import app as log
from gyre.cli.proxy import proxy
from gyre.cli.run import run
from gyre.cli.train import train
from gyre.cli.train_status import status
from gyre.cli.trees import app as trees
from gyre.cli.two_words import TwoWords

app = typer.Typer(
    name="gyre",
    cls=TwoWords,
    help="Record long agent runs with exact token ids, rebuild them as trees, train on them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def common(
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
    show_version: entry.VersionOption = False,
) -> None:
    output.install_logging()


app.command()(proxy)
app.command()(engine)
app.command()(doctor)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(train)
app.command("train status")(status)
app.add_typer(config)
app.add_typer(log)
app.add_typer(trees)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point."""
    entry.run(app, "gyre", args)


if __name__ == "__main__":
    main()
