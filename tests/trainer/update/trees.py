"""A folder of trees, and the model that is said to have sampled them: log-probabilities are its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from gyre.elastic.engine.models.tiny import make_tiny
from gyre.treebuilder.trees import ExecutionTree
from tests.trainer.data.folders import PLAIN, stored
from tests.trees.export.builders import Folder, TreeBuilder

VOCAB = 2048


def trees_folder(
    root: Path, *, groups: int = 4, size: int = 2, alike: tuple[int, ...] = (), vocab: int = VOCAB
) -> Path:
    """Executions of two branches on a prompt that their group shares. Those of `alike` have equal scores."""
    folder = Folder()
    for group in range(groups):
        for number in range(size):
            tree = execution(f"run-{group}-{number}", group, number, vocab)
            score = 0.5 if group in alike else float(number)
            folder.add(tree, group=f"group-{group}", score=score)
    return stored(root, folder)


def execution(name: str, group: int, number: int, vocab: int = VOCAB) -> ExecutionTree:
    """What `tiny` with seed 0 would have said of these ids, where they are all its own."""
    shared, own = np.random.default_rng([group]), np.random.default_rng([group, number])

    def ids(draw: np.random.Generator, count: int) -> list[int]:
        return [int(value) for value in draw.integers(0, vocab, count)]

    built = TreeBuilder(name)
    first = built.call(f"{name}-a", None, ids(shared, 6), ids(own, 3), **PLAIN)
    for branch in range(2):
        leaf = built.call(f"{name}-{branch}", first, ids(own, 2), ids(own, 3), **PLAIN)
        built.admit(leaf, branch)
    tree = built.tree()
    if vocab <= VOCAB:
        for node in tree.nodes:
            if node.target:
                path = [int(token) for one in tree.path(node.node_id) for token in one.token_ids]
                node.logprobs = _logprobs(tuple(path))[-len(node.token_ids) :]
    return tree


@cache
def _logprobs(ids_S: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Of each token but the first, in the light of those before it."""
    with torch.no_grad():
        logits_SV = _model()(torch.tensor([ids_S])).logits[0].log_softmax(-1)
    found: np.ndarray[tuple[int], np.dtype[np.float32]] = (
        logits_SV[:-1].gather(-1, torch.tensor(ids_S[1:])[:, None])[:, 0].numpy()
    )
    return found


@cache
def _model() -> torch.nn.Module:
    return make_tiny().model
