"""A live run in the terminal: a table that moves for who watches, a line for each event in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gyre.cli import output
from gyre.cli.train_rows import batch_line, evaluation_line, publication_line, rows

if TYPE_CHECKING:
    from rich.table import Table

    from gyre.trainer.live.reports import BatchReport, Evaluated, Publication
    from gyre.trainer.live.status import Status

_PER_S = 2


class View:
    """What the loop tells, for people: on stderr."""

    def __init__(self, *, moves: bool) -> None:
        self._moves = moves
        self._status: Status | None = None

    def tell(self, text: str) -> None:
        """A remark, a warning. It stays."""
        output.say(text)

    def status(self, status: Status) -> None:
        """As often as one likes."""
        self._status = status

    def batch(self, report: BatchReport, batches: int) -> None:
        """Of so many in all."""
        if not self._moves:
            output.say(batch_line(report, batches))

    def publication(self, publication: Publication) -> None:
        if not self._moves:
            output.say(publication_line(publication))

    def evaluation(self, evaluated: Evaluated) -> None:
        """It stays in a terminal too: the table has no room for all of them."""
        output.say(evaluation_line(evaluated))

    def table(self) -> Table:
        """As it is now; its clocks move while the loop is busy."""
        return shown(self._status) if self._status else shown_nothing()


@contextmanager
def view(*, stays: bool = True) -> Iterator[View]:
    """A table below all that is said, if a person watches. The last one stays on the screen."""
    if not output.shows_progress():
        yield View(moves=False)
        return
    from rich.console import Console
    from rich.live import Live

    made = View(moves=True)
    # What is said meanwhile goes above the table; stdout is for data.
    with Live(
        console=Console(stderr=True, highlight=False),
        get_renderable=made.table,
        refresh_per_second=_PER_S,
        redirect_stdout=False,
        transient=not stays,
    ):
        yield made


def shown(status: Status, *, gone: bool = False) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for name, text in rows(status, time.time(), gone=gone):
        table.add_row(Text(name), Text(text))
    return table


def shown_nothing() -> Table:
    from rich.table import Table

    return Table.grid()
