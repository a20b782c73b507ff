"""What the other tests stand on: an oracle that is right by hand, and random trees of every shape."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm
from tests.trainer import oracle
from tests.trainer.builders import context, random_trees, targets, tree
from tests.trainer.models import tiny_model


def execution(
    *logprobs: float | None, advantage: float = 1.0, trajectory: int = 0, index: int = 0
) -> list[oracle.Answer]:
    return [
        oracle.Answer(execution=index, trajectory=trajectory, advantage=advantage, behaviour=value)
        for value in logprobs
    ]


def objective(
    answers: list[oracle.Answer], settings: LossSettings, new: list[float], old: list[float]
) -> tuple[float, list[float], list[bool]]:
    """Loss, gradient of every log-probability, and what is clipped."""
    new_T = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    value = oracle.objective(answers, settings, new_T, torch.tensor(old, dtype=torch.float64))
    value.loss.backward()
    assert new_T.grad is not None
    return value.loss.item(), new_T.grad.tolist(), value.clipped_T


def test_two_executions_by_hand() -> None:
    """Log-ratios 0.1 and 0.3: s = e^0.2 = 1.2214, inside; 0.4 alone: s = 1.4918, above 1.3."""
    answers = execution(-1.0, -1.0, advantage=2.0) + execution(-1.0, advantage=1.0, index=1)
    settings = LossSettings(clip_low=0.3, clip_high=0.3, importance=Importance.OFF)

    loss, gradient, clipped = objective(answers, settings, [-0.9, -0.7, -0.6], [-1.0, -1.0, -1.0])

    assert loss == pytest.approx(-(math.exp(0.1) + math.exp(0.3)) / 2 - 1.3 / 2)
    assert clipped == [False, False, True]
    wanted = [-0.5 * math.exp(0.1) / 2 * 2, -0.5 * math.exp(0.3) / 2 * 2, 0.0]
    assert gradient == pytest.approx(wanted)


def test_execution_ratio_by_hand() -> None:
    """Both targets of an execution get s_e, not their own ratio."""
    settings = LossSettings(ratio=RatioForm.EXECUTION, clip_level=ClipLevel.OFF, importance=Importance.OFF)

    loss, gradient, _ = objective(execution(-1.0, -1.0), settings, [-0.9, -0.7], [-1.0, -1.0])

    assert loss == pytest.approx(-math.exp(0.2))
    assert gradient == pytest.approx([-math.exp(0.2) / 2] * 2)


@pytest.mark.parametrize(
    ("level", "clipped"),
    [
        (ClipLevel.OFF, [False, False, False]),
        (ClipLevel.EXECUTION, [False, False, False]),
        (ClipLevel.TRAJECTORY, [False, False, True]),
        (ClipLevel.TOKEN, [True, False, True]),
    ],
)
def test_levels_of_the_clip(level: ClipLevel, clipped: list[bool]) -> None:
    """Log-ratios 0.3 and -0.4 in one trajectory, 0.25 in another: means -0.05, 0.25, and 0.05 of all."""
    answers = execution(-1.0, -1.0) + execution(-1.0, trajectory=1)
    settings = LossSettings(clip_level=level, clip_low=0.2, clip_high=0.2)

    assert objective(answers, settings, [-0.7, -1.4, -0.75], [-1.0, -1.0, -1.0])[2] == clipped


def test_importance_weights_by_hand() -> None:
    """pi_old / pi_behaviour is e^0.5 and e^1.5, of which the second is above the cap of 2."""
    answers = execution(-1.5, -2.5, None)

    _, gradient, _ = objective(answers, LossSettings(clip_level=ClipLevel.OFF), [-1.0] * 3, [-1.0] * 3)

    assert gradient == pytest.approx([-math.exp(0.5) / 3, -2 / 3, -1 / 3])


def test_a_shared_target_is_counted_once() -> None:
    """Two leaves under one sampled node: three targets, each the logits at its parent say."""
    model = tiny_model()
    nodes = [context(-1, 5, 6), targets(0, 7, 8, temperature=0.7), targets(1, 9), context(1, 10)]

    found_T = oracle.logprobs(model, [tree("a", nodes)])

    logits_SV = model(torch.tensor([[5, 6, 7, 8]])).logits[0].double()
    rows_SV = torch.stack((logits_SV[1] / 0.7, logits_SV[2] / 0.7, logits_SV[3])).log_softmax(-1)
    torch.testing.assert_close(found_T, rows_SV[range(3), [7, 8, 9]], rtol=0, atol=1e-5)


def paths(trees: list[TrainTree]) -> list[tuple[int, str, tuple[int, ...]]]:
    """(execution, group, ids up to and with the target) of every target."""
    found = []
    for index, one in enumerate(trees):
        for node in range(len(one.nodes)):
            ids: list[int] = []
            for step in oracle.way_to(one, node)[:-1]:
                ids += one.nodes[step].token_ids.tolist()
            for token in one.nodes[node].token_ids.tolist() if one.nodes[node].target else ():
                ids = [*ids, token]
                found.append((index, one.group, tuple(ids)))
    return found


def twice_at_one_place(trees: list[TrainTree], *, across: bool) -> bool:
    who: dict[tuple[int, ...], set[str]] = {}
    for index, group, ids in paths(trees):
        who.setdefault(ids, set()).add(group if across else str(index))
    return any(len(names) > 1 for names in who.values())


def duplicate_leaves(trees: list[TrainTree]) -> bool:
    for one in trees:
        inner = {node.parent for node in one.nodes}
        leaves = [node for index, node in enumerate(one.nodes) if index not in inner]
        if max(Counter((node.parent, *node.token_ids.tolist()) for node in leaves).values()) > 1:
            return True
    return False


def branch_at_first_token(trees: list[TrainTree]) -> bool:
    return any(
        node.parent < 0 and len(node.token_ids) == 1 and sum(child.parent == index for child in one.nodes) > 1
        for one in trees
        for index, node in enumerate(one.nodes)
    )


def targets_under_targets(trees: list[TrainTree]) -> bool:
    """A root is never a target, so that -1 does no harm."""
    return any(
        one.nodes[node.parent].target and node.target
        for one in trees
        for node in one.nodes[1:]
        if node.parent >= 0
    )


def mixed(trees: list[TrainTree]) -> bool:
    """Temperatures and versions in one execution."""
    for one in trees:
        runs = [node.target for node in one.nodes if node.target]
        versions = {version for run in runs for version, _, _ in run.versions}
        if len({run.temperature for run in runs}) > 1 and len(versions) > 1:
            return True
    return False


@pytest.mark.parametrize(
    "shown",
    [
        duplicate_leaves,
        branch_at_first_token,
        mixed,
        lambda trees: twice_at_one_place(trees, across=False),
        lambda trees: twice_at_one_place(trees, across=True),
        lambda trees: any(sum(node.parent < 0 for node in one.nodes) > 1 for one in trees),
        lambda trees: any(len(node.token_ids) == 1 for one in trees for node in one.nodes),
        lambda trees: any(node.target and not node.target.comparable for one in trees for node in one.nodes),
        targets_under_targets,
        lambda trees: any(one.trajectories > 2 for one in trees),
        lambda trees: any(len(path) > 4 for one in trees for path in oracle.leaf_paths(one)),
    ],
)
def test_random_trees_have_every_shape(shown: Callable[[list[TrainTree]], bool]) -> None:
    """In at least two of the first ten, so that no test depends on one seed for it."""
    assert sum(map(shown, map(random_trees, range(10)))) >= 2
