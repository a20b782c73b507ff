"""What `gyre` and `gyre-trees` have in common: how they are run, and how an error ends them.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from gyre.cli import output
from gyre.proxy.errors import GyreError


def run(app: typer.Typer, name: str, args: Sequence[str] | None = None) -> None:
    """Like `app`, but an error of ours is a message and not a traceback."""
    _prepare_streams()
    _require_text(sys.argv[1:] if args is None else args)
    try:
        app(args=args, prog_name=name)
    except GyreError as error:
        if output.wants_traceback():
            traceback.print_exception(error)
        output.print_error(error)
        raise SystemExit(1) from None
    except OSError as problem:
        # A file that may not be read, a disk that fails: nothing that a traceback would explain.
        if output.wants_traceback():
            traceback.print_exception(problem)
        text = " ".join((problem.strerror or str(problem)).split())
        where = f"`{problem.filename}`: " if problem.filename is not None else ""
        output.print_error(GyreError(f"{where}{text}"))
        raise SystemExit(1) from None


def _prepare_streams() -> None:
    """Output that is closed is thrown away; what its encoding has no letter for becomes a `?`."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _require_text(args: Sequence[str]) -> None:
    """Names of executions and paths stand in logs, in trees and in JSON, which are UTF-8."""
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            shown = arg.encode(errors="backslashreplace").decode()
            output.print_error(GyreError(f"`{shown}` is no UTF-8", "names and paths have to be"))
            raise SystemExit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gyre {version('gyre-rl')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
]
