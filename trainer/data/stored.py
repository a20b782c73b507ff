"""Trees of a folder, converted one at a time; what is damaged is passed over with a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gyre.trainer.data.convert import Converted, train_tree
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.store.read import Trees
from gyre.treebuilder.trees import ExecutionTree

_LOG = logging.getLogger(__name__)
_SENSELESS = (AttributeError, LookupError, TypeError, ValueError)
"""What rows that no build wrote may raise: nulls, numbers of nodes that are none."""


class Worth(NamedTuple):
    group: str
    reward: float
    advantage: float


def converted(trees: Trees, wanted: Mapping[AttemptKey, Worth]) -> Iterator[tuple[AttemptKey, Converted]]:
    """In stored order; one tree is in memory at a time, with its row group.

    Raises:
        TreeError: nothing that was wanted can be read, and a file is damaged.
    """
    problem: TreeError | None = None
    found = 0
    for part in trees.parts():
        keys = wanted.keys() & trees.attempts(part)
        try:
            for key, tree in _trees_of(trees, keys):
                each = _converted(tree, wanted[key])
                if each is not None:
                    found += 1
                    yield key, each
        except TreeError as damage:
            problem = damage
            _LOG.warning("%d executions of %s are not trained: %s", len(keys), part, damage.message)
    if problem is not None and not found:
        raise problem


def _trees_of(trees: Trees, keys: set[AttemptKey]) -> Iterator[tuple[AttemptKey, ExecutionTree]]:
    """Of one part."""
    left = set(keys)
    try:
        for summary, tree in trees.several(keys):
            key = (summary.execution_id, summary.execution_attempt)
            left.discard(key)
            yield key, tree
        return
    except TreeError:
        raise
    except _SENSELESS:
        # One of those that are left; the others are none the worse for it.
        pass
    for key in sorted(left):
        try:
            yield key, trees.tree(*key)
        except TreeError:
            raise
        except _SENSELESS as problem:
            _warn(key, problem)


def _converted(tree: ExecutionTree, worth: Worth) -> Converted | None:
    try:
        return train_tree(tree, group=worth.group, reward=worth.reward, advantage=worth.advantage)
    except _SENSELESS as problem:
        _warn((tree.execution_id, tree.execution_attempt), problem)
        return None


def _warn(key: AttemptKey, problem: Exception) -> None:
    _LOG.warning("execution %s (attempt %d) is not trained, it is damaged: %s", *key, problem)
