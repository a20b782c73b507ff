"""The recording proxy: agents talk through it, and every call is on disk with exact token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gyre.proxy.log.reading.read import Log, read_log

__all__ = ["Log", "read_log"]


def __getattr__(name: str) -> object:
    """Load Arrow only when a log is read: `import gyre.proxy` stays quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gyre.proxy.log.reading import read

    return {"Log": read.Log, "read_log": read.read_log}[name]
