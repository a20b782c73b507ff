"""The truth that training on trees is compared with, stated from the executions themselves.

Nothing of the trainer's packing, passes or loss is used here. Every trajectory of every execution runs alone
through the whole Hugging Face model; a target's log-probability is read off the full logits at its own
temperature, once, whichever of its trajectories are run; the loss is written out in fp64 and goes backward
as a whole.

Shapes: T targets of a batch (order execution, node, token), S tokens of a path, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from gyre.trainer.data.tree import TargetRun, TrainTree
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm

Key = tuple[int, int, int]
"""Execution, node and token: the identity of a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What the loss comes to."""

    loss: torch.Tensor
    """A scalar with gradient, divided by the number of executions."""
    scale: float
    """Sum of its terms' sizes: terms of both signs may nearly cancel, their errors do not."""
    ratios: list[float]
    """s_e of every execution that has targets."""
    clipped_T: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    value: Value
    logprobs_T: torch.Tensor
    """fp64, detached."""
    gradients: dict[str, torch.Tensor]
    """By name of the parameter; none where nothing flowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A target."""

    execution: int
    trajectory: int
    advantage: float
    behaviour: float | None


def truth(
    model: PreTrainedModel,
    trees: Sequence[TrainTree],
    loss: LossSettings,
    old_T: torch.Tensor,
    reference_T: torch.Tensor | None = None,
) -> Truth:
    """What one update has to come to."""
    model.zero_grad(set_to_none=True)
    logprobs_T = logprobs(model, trees)
    value = objective(answers(trees), loss, logprobs_T, old_T.double(), reference_T)
    (value.loss + 0 * logprobs_T.sum()).backward()  # all may be clipped
    return Truth(value=value, logprobs_T=logprobs_T.detach(), gradients=gradients(model))


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Of all parameters by name, taken off the model; nothing where nothing flowed."""
    found = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


# ---------------------------------------------------------------------------------------- log-probabilities


def logprobs(model: PreTrainedModel, trees: Sequence[TrainTree]) -> torch.Tensor:
    """(T,) fp64 with gradient."""
    found: dict[Key, torch.Tensor] = {}
    for index, tree in enumerate(trees):
        for path in leaf_paths(tree):
            for key, value in _path_logprobs(model, tree, index, path):
                found.setdefault(key, value)
    return torch.stack([found[key] for key in sorted(found)])


def leaf_paths(tree: TrainTree) -> list[list[int]]:
    """Indices of nodes from the root down, of each trajectory."""
    inner = {node.parent for node in tree.nodes}
    return [way_to(tree, index) for index in range(len(tree.nodes)) if index not in inner]


def way_to(tree: TrainTree, index: int) -> list[int]:
    parent = tree.nodes[index].parent
    return [index] if parent < 0 else [*way_to(tree, parent), index]


def _path_logprobs(
    model: PreTrainedModel, tree: TrainTree, index: int, path: list[int]
) -> list[tuple[Key, torch.Tensor]]:
    ids_S = torch.tensor([int(token) for node in path for token in tree.nodes[node].token_ids])
    logits_SV = model(input_ids=ids_S[None], use_cache=False).logits[0].double()
    found: list[tuple[Key, torch.Tensor]] = []
    place = 0
    for node in path:
        run = tree.nodes[node].target
        for token in range(len(tree.nodes[node].token_ids)):
            if run is not None:
                row_V = (logits_SV[place - 1] / run.temperature).log_softmax(-1)
                found.append(((index, node, token), row_V[ids_S[place]]))
            place += 1
    return found


# ------------------------------------------------------------------------------------------------- the loss


def answers(trees: Sequence[TrainTree]) -> list[Answer]:
    """(T,)"""
    return [
        Answer(
            execution=index,
            trajectory=node.target.trajectory,
            advantage=tree.advantage,
            behaviour=_behaviour(node.target, token),
        )
        for index, tree in enumerate(trees)
        for node in tree.nodes
        if node.target is not None
        for token in range(len(node.token_ids))
    ]


def _behaviour(run: TargetRun, token: int) -> float | None:
    return float(run.logprobs[token]) if run.comparable and run.logprobs is not None else None


def objective(
    answers_T: list[Answer],
    settings: LossSettings,
    new_T: torch.Tensor,
    old_T: torch.Tensor,
    reference_T: torch.Tensor | None = None,
) -> Value:
    """The loss, target by target, in fp64."""
    executions = sorted({answer.execution for answer in answers_T})
    members = {e: [t for t, answer in enumerate(answers_T) if answer.execution == e] for e in executions}
    ratios = {e: _ratio(new_T, old_T, members[e]) for e in executions}
    terms_T, clipped_T = [], []
    for t, answer in enumerate(answers_T):
        ratio, clipped = _clip(answers_T, settings, new_T, old_T, t, ratios[answer.execution])
        term = -ratio * answer.advantage * _weight(settings, old_T[t], answer)
        if settings.kl and reference_T is not None:
            gap = reference_T[t].double() - new_T[t]
            term = term + settings.kl * (gap.exp() - gap - 1)
        terms_T.append(term / len(members[answer.execution]) / len(executions))
        clipped_T.append(clipped)
    return Value(
        loss=torch.stack(terms_T).sum(),
        scale=math.fsum(abs(term.item()) for term in terms_T),
        ratios=list(ratios.values()),
        clipped_T=clipped_T,
    )


def _clip(
    answers_T: list[Answer],
    settings: LossSettings,
    new_T: torch.Tensor,
    old_T: torch.Tensor,
    t: int,
    execution_ratio: float,
) -> tuple[torch.Tensor, bool]:
    """What takes the place of r_t, and whether it is a bound, which has no gradient."""
    advantage = answers_T[t].advantage
    level = _level(answers_T, settings, new_T, old_T, t)
    low, high = 1 - _low(settings), 1 + _high(settings)
    if settings.clip_level is not ClipLevel.OFF and advantage > 0 and level > high:
        return new_T.new_tensor(high), True
    if settings.clip_level is not ClipLevel.OFF and advantage < 0 and level < low:
        return new_T.new_tensor(low), True
    if settings.ratio is RatioForm.EXECUTION:
        return execution_ratio * (new_T[t] - new_T[t].detach()).exp(), False
    return (new_T[t] - old_T[t]).exp(), False


def _ratio(new_T: torch.Tensor, old_T: torch.Tensor, members: list[int]) -> float:
    """exp of the mean of log r over some targets: never a part of what is differentiated."""
    return math.exp(math.fsum(float(new_T[t].detach() - old_T[t]) for t in members) / len(members))


def _level(
    answers_T: list[Answer], settings: LossSettings, new_T: torch.Tensor, old_T: torch.Tensor, t: int
) -> float:
    """The ratio that decides whether target t is clipped."""
    mine = answers_T[t]
    members = [i for i, other in enumerate(answers_T) if other.execution == mine.execution]
    match settings.clip_level:
        case ClipLevel.TRAJECTORY:
            members = [i for i in members if answers_T[i].trajectory == mine.trajectory]
        case ClipLevel.TOKEN:
            members = [t]
    return _ratio(new_T, old_T, members)


def _low(settings: LossSettings) -> float:
    default = 0.2 if settings.clip_level is ClipLevel.TOKEN else 3e-4
    return default if settings.clip_low is None else settings.clip_low


def _high(settings: LossSettings) -> float:
    default = 0.2 if settings.clip_level is ClipLevel.TOKEN else 4e-4
    return default if settings.clip_high is None else settings.clip_high


def _weight(settings: LossSettings, old: torch.Tensor, answer: Answer) -> float:
    if settings.importance is Importance.OFF or answer.behaviour is None:
        return 1.0
    return min(math.exp(float(old) - answer.behaviour), settings.importance_cap)
