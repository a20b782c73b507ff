"""Trees of records, and trees as values that compare."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from gyre.treebuilder.builder import Builder
from gyre.treebuilder.trees import ExecutionTree
from tests.trees.world.emit import Record


def build(record: Record, name: str = "e1") -> ExecutionTree:
    builder = Builder(name, bodies=record.bodies)
    for call in record.calls:
        builder.add(call)
    return builder.tree()


def plain(value: Any) -> Any:
    """Values that compare, arrays included."""
    if isinstance(value, ExecutionTree):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
