"""How gyre talks: data on stdout, everything else on stderr.

Every command writes through these few functions, so that `--json` is one document and nothing
else, tables look alike, and `error:` is always followed by the `hint:` that belongs to it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer

from gyre.proxy.errors import GyreError

PIPE_WIDTH = 200
"""Columns of a table that goes to a file or pipe: wide enough that no cell is folded."""


@dataclass
class Manner:
    """How much the user wants to hear; set once from the command line."""

    verbose: bool = False
    quiet: bool = False


manner = Manner()


def set_verbose(on: bool) -> bool:
    """Option callback of `--verbose`: more log lines, and tracebacks for errors."""
    if on:
        manner.verbose = True
        logging.getLogger("gyre").setLevel(logging.DEBUG)
    return on


def set_quiet(on: bool) -> bool:
    """Option callback of `--quiet`: no progress and no remarks, errors only."""
    if on:
        manner.quiet = True
    return on


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=set_verbose, help="Say more; show tracebacks of errors."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", callback=set_quiet, help="No progress and no remarks, errors only.")
]


def print_json(doc: Any, *, line: bool = False) -> None:
    """Write `doc` to stdout: one indented document, or one line where more may follow."""
    import orjson

    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | (0 if line else orjson.OPT_INDENT_2)
    sys.stdout.write(orjson.dumps(doc, default=_plain, option=option).decode() + "\n")
    sys.stdout.flush()


def _plain(value: object) -> str:
    """JSON has no bytes and no paths: hex and text stand for them."""
    return value.hex() if isinstance(value, bytes) else str(value)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; columns that hold only numbers are aligned right. No head where none has a name."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    head = any(columns)
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, show_edge=False, show_header=head)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int | float | None) for row in cells)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(file=sys.stdout, width=width, highlight=False).print(table)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case _:
            return str(value)


def counted(number: int, one: str, many: str = "") -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def say(text: str) -> None:
    """A remark for the person at the terminal; never data."""
    if not manner.quiet:
        print(text, file=sys.stderr, flush=True)


def print_error(error: GyreError) -> None:
    """`error:` and, where there is something to do about it, `hint:`."""
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr, flush=True)


def fail(message: str, hint: str = "") -> NoReturn:
    """End the command with exit code 1."""
    print_error(GyreError(message, hint))
    raise typer.Exit(1)


def wants_traceback() -> bool:
    return manner.verbose or os.environ.get("GYRE_DEBUG") == "1"


def shows_progress() -> bool:
    """Moving bars only for a person who watches: never in a pipe, a log file or a plain terminal."""
    plain = "NO_COLOR" in os.environ or "GYRE_NO_PROGRESS" in os.environ
    return sys.stderr.isatty() and not plain and not manner.quiet


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Give a function that is called with the amount done since the last call.

    >>> with progress("sealing", total=1) as advance:
    ...     advance(1)
    """
    if not shows_progress():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def counting(description: str) -> Iterator[Callable[[int, int], None]]:
    """The same for work that says itself how much is done, of how much in all."""
    if not shows_progress():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class StderrHandler(logging.Handler):
    """Log records of the library, one line each, to wherever stderr points now."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def install_logging() -> None:
    """One handler on the `gyre` logger; library code only calls `getLogger(__name__)`."""
    logger = logging.getLogger("gyre")
    if not logger.handlers:
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
