"""Where a prompt enters the tree, without comparing what both are known to share. Pure.

A prompt that comes as a delta names an earlier row. A prompt that comes whole is hashed once: earlier
prompts and outputs that could be its beginning are those whose last id stands in it at their length,
the longest first, and xxh3-128 of that beginning decides. So the work is linear in the prompt, read at
memory speed, and nothing is compared id by id except what is new.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gyre.treebuilder.tokens.prefix import Position, PrefixTree
from gyre.treebuilder.trees import Ids

Hasher = xxhash.xxh3_128


def as_bytes(ids: Ids) -> memoryview | bytes:
    return memoryview(np.ascontiguousarray(ids).data).cast("B") if len(ids) else b""


def path_hasher(tree: PrefixTree, at: Position) -> Hasher:
    """State after all ids from the root to `at`."""
    hasher = Hasher()
    for run in tree.path(at):
        hasher.update(as_bytes(run.ids[: at.depth - run.depth]))
    return hasher


class Ends:
    """Lengths at which earlier prompts and outputs ended, each with the digest of what led there."""

    def __init__(self) -> None:
        self._known: dict[bytes, Position] = {}
        self._lengths: npt.NDArray[Any] = np.zeros(64, np.int64)
        self._last_ids: npt.NDArray[Any] = np.zeros(64, np.int32)
        self._count = 0

    def add(self, digest: bytes, at: Position, last_id: int) -> None:
        if digest in self._known:
            return
        self._known[digest] = at
        if self._count == len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
            self._last_ids = np.concatenate([self._last_ids, np.zeros_like(self._last_ids)])
        self._lengths[self._count] = at.depth
        self._last_ids[self._count] = last_id
        self._count += 1

    def find(self, prompt: Ids) -> tuple[Position | None, Hasher]:
        """The longest earlier end that `prompt` begins with, and the state after it."""
        for length in self._candidates(prompt):
            hasher = Hasher(as_bytes(prompt[:length]))
            at = self._known.get(hasher.digest())
            if at is not None:
                return at, hasher
        return None, Hasher()

    def _candidates(self, prompt: Ids) -> list[int]:
        lengths = self._lengths[: self._count]
        fits = lengths <= len(prompt)
        fitting = lengths[fits]
        same = fitting[prompt[fitting - 1] == self._last_ids[: self._count][fits]]
        found: list[int] = np.unique(same)[::-1].tolist()
        return found
