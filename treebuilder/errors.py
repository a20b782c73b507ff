"""What can be wrong with an execution or with a folder of trees."""

from __future__ import annotations

from gyre.proxy.errors import GyreError


class TreeError(GyreError, ValueError):
    """A folder of trees cannot be read or written, or is of a newer format."""


class ExecutionError(GyreError, ValueError):
    """One execution cannot be rebuilt; `str()` says which call and why. Others are not affected."""
