"""The end of a live run: its model as a plain Hugging Face folder, and its trees."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from gyre.proxy.errors import LogError
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.settings import TreeTable
from gyre.trainer.live.trees import store
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.export import export
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.options import Rule


def finish(
    table: TreeTable,
    folder: LiveFolder,
    checkpoint: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda _: None,
) -> Path:
    """Where the final model is. May be done again.

    The model comes first: trees of a long run take their time, and can be built by whoever wants them.

    Raises:
        TrainError: the disk is full, or cannot be written.
        Stopped: `stop` said so while trees were built. What was built is there when it is done again.
    """
    export(checkpoint, folder.final)

    def go_on(*_: object) -> None:
        if stop():
            raise Stopped

    try:
        go_on()
        store(folder, table, go_on)
    except (LogError, TreeError, OSError) as problem:
        said = problem.message if isinstance(problem, LogError | TreeError) else str(problem)
        warn(f"trees could not be stored: {said}; `{_by_hand(table, folder)}` does it")
    return folder.final


def _by_hand(table: TreeTable, folder: LiveFolder) -> str:
    """The command that makes the same trees."""
    how = ["--select", str(table.select), "--seed", str(table.seed)]
    how += [] if table.select is Rule.ALL else ["--cap", str(table.cap)]
    return shlex.join(["gyre-trees", "build", str(folder.logs), "-o", str(folder.trees), "--prune", *how])
