"""Trees of a live run: each when its group is taken, and all of them in the folder of the run."""

from __future__ import annotations

from pathlib import Path

from gyre.proxy.log.folder import create_folder
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.settings import TreeTable
from gyre.treebuilder.build import BuildReport, Progress, build_trees
from gyre.treebuilder.online import Online
from gyre.treebuilder.options import Options


class OnlineTrees(Online):
    """Of the log that a run's proxy writes; it need not have begun."""

    def __init__(self, logs: Path, table: TreeTable) -> None:
        """Raises LogError: the folder cannot be written, or holds a log of a newer format."""
        super().__init__(create_folder(logs).root, options_of(table))


def options_of(table: TreeTable) -> Options:
    return Options(cap=table.cap, seed=table.seed, rule=table.select)


def store(folder: LiveFolder, table: TreeTable, progress: Progress | None = None) -> BuildReport:
    """Bring RUN/trees up to date: `gyre-trees build RUN/logs -o RUN/trees`. Reads the whole log.

    Raises:
        LogError, TreeError: the log cannot be read, or the trees cannot be written.
    """
    return build_trees(folder.logs, folder.trees, options=options_of(table), prune=True, progress=progress)
