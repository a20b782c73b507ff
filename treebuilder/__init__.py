"""Executions rebuilt as prefix-sharing trajectory trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gyre.proxy.log.reading.read import Log, read_log
    from gyre.treebuilder.build import BuildReport, build_trees
    from gyre.treebuilder.store.read import Trees, read_trees

__all__ = ["BuildReport", "Log", "Trees", "build_trees", "read_log", "read_trees"]


def __getattr__(name: str) -> object:
    """Load Arrow only when logs or trees are read: `import gyre.treebuilder` stays quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gyre.proxy.log.reading import read as log
    from gyre.treebuilder import build
    from gyre.treebuilder.store import read as trees

    return next(vars(module)[name] for module in (build, trees, log) if name in vars(module))
