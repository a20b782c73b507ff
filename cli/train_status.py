"""`gyre train status RUN`: where a live run stands, from another terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gyre.cli import output
from gyre.cli.stop import Stop, interruptible

if TYPE_CHECKING:
    from gyre.trainer.live.status import Status

SCHEMA = 1
_EVERY_S = 1.0


def status(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", show_default=False)],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run ends.")] = False,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Say where a live run stands: batch, pass rate, executions, time; and whether it runs at all.

    With `--watch --json` a document a line, whenever something is new.
    """
    if not watch:
        _print(_read(run), json=json)
        return
    with interruptible("") as stop:
        if json:
            for found in _news(_looks(run, stop)):
                output.print_json(_document(found), line=True)
        else:
            _print(_watched(run, stop), json=False)
    raise typer.Exit(stop.code)


def _read(run: Path) -> Status:
    from gyre.trainer.errors import TrainError
    from gyre.trainer.live.status import read_status

    found = read_status(run)
    if found is not None:
        return found
    if not run.exists():
        raise TrainError(f"there is no `{run}`", "give the folder of a run")
    hint = "give the folder that `gyre train RUN.toml` writes, `out` in its file"
    if (run / "metrics.jsonl").exists():
        hint = f"what `gyre train --trees` did is in `{run / 'metrics.jsonl'}`"
    raise TrainError(f"`{run}` is not the folder of a live run", hint)


def _print(found: Status, *, json: bool) -> None:
    from gyre.cli.train_rows import rows

    if json:
        output.print_json(_document(found))
        return
    output.print_table("", ("", ""), rows(found, time.time(), gone=_gone(found)))


def _document(found: Status) -> dict[str, Any]:
    import msgspec

    from gyre.trainer.live.status import is_running

    about: dict[str, Any] = msgspec.to_builtins(found)
    return {**about, "schema": SCHEMA, "running": is_running(found), "gone": _gone(found)}


def _gone(found: Status) -> bool:
    """Ended without saying so: it was killed, or the machine stopped."""
    from gyre.trainer.live.status import is_running

    return not found.phase.over and not is_running(found)


def _news(looks: Iterator[Status]) -> Iterator[Status]:
    """Those that say more than the one before. A clock that went on is not new, nor what falls with it."""
    import msgspec

    before = None
    for found in looks:
        said = msgspec.structs.replace(found, updated_at=0.0, tokens_per_s=None), _gone(found)
        if said != before:
            yield found
        before = said


def _looks(run: Path, stop: Stop) -> Iterator[Status]:
    """The status again and again, up to the last."""
    while True:
        found = _read(run)
        yield found
        if found.phase.over or _gone(found) or stop.wait(_EVERY_S):
            return


def _watched(run: Path, stop: Stop) -> Status:
    """Shown while it changes; the last one."""
    from gyre.cli.train_rows import status_line
    from gyre.cli.train_view import view

    last, told = _read(run), ""
    with view(stays=False) as shown:
        for last in _looks(run, stop):
            shown.status(last)
            line = status_line(last, gone=_gone(last))
            key = f"{last.phase} {last.batches_done}"
            if key != told and not output.shows_progress():
                output.say(line)
            told = key
    return last
