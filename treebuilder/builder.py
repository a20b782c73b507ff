"""ENTRY: the calls of one execution in, its tree out. Pure; the same code online and offline.

    builder = Builder("run-7", bodies=messages)
    for call in calls:              # in commit order: a parent before its children
        builder.add(call)
    tree = builder.tree(Options(cap=5))
"""

from __future__ import annotations

from collections.abc import Mapping

from gyre.treebuilder.call import Call
from gyre.treebuilder.options import Options
from gyre.treebuilder.trees import ExecutionTree


class Builder:
    """One attempt of one execution."""

    def __init__(
        self, execution_id: str, execution_attempt: int = 0, *, bodies: Mapping[str, bytes] | None = None
    ) -> None:
        """`bodies` gives the JSON of a message or tool by its address; it is only asked where ids leave a
        link open."""
        raise NotImplementedError

    def add(self, call: Call) -> None:
        """Take the next call. Linear in its new tokens.

        Raises:
            ExecutionError: the call contradicts earlier ones (missing parent, a digest that does not fit).
        """
        raise NotImplementedError

    def tree(self, options: Options | None = None) -> ExecutionTree:
        """The tree of all calls so far; more may be added afterwards."""
        raise NotImplementedError
