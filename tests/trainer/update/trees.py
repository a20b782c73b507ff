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
    """Prompts are any ids below `vocab`, answers are sampled from `tiny` with seed 0."""
    shared, own = np.random.default_rng([group]), np.random.default_rng([group, number])
    prompt = shared.integers(0, vocab, 6).tolist()
    built = TreeBuilder(name)
    answers = [_sampled(prompt, own)]
    first = built.call(f"{name}-a", None, prompt, answers[0][0], **PLAIN)
    for branch in range(2):
        new = own.integers(0, vocab, 2).tolist()
        answers.append(_sampled([*prompt, *answers[0][0], *new], own))
        leaf = built.call(f"{name}-{branch}", first, new, answers[-1][0], **PLAIN)
        built.admit(leaf, branch)
    tree = built.tree()
    targets = [node for node in tree.nodes if node.target]
    for node, (_, logprobs) in zip(targets, answers, strict=True):
        node.logprobs = np.array(logprobs, np.float32)
    return tree


def _sampled(prompt: list[int], draw: np.random.Generator, count: int = 3) -> tuple[list[int], list[float]]:
    """Ids and their log-probabilities. Ids that `tiny` does not know are another one to it."""
    ids, logprobs = [], []
    for _ in range(count):
        known = torch.tensor([[token % VOCAB for token in [*prompt, *ids]]])
        with torch.no_grad():
            row_V = _model()(known).logits[0, -1].double().log_softmax(-1).numpy()
        probs_V = np.exp(row_V)
        ids.append(int(draw.choice(VOCAB, p=probs_V / probs_V.sum())))
        logprobs.append(float(row_V[ids[-1]]))
    return ids, logprobs


@cache
def _model() -> torch.nn.Module:
    return make_tiny().model
