"""Which parameters are trained, and AdamW over them.

Shapes: none; parameters are taken as they come, whole or sharded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from gyre.trainer.errors import TrainError
from gyre.trainer.settings import OptimizerSettings
from gyre.trainer.update.computing import out_of_memory
from gyre.trainer.update.ranks import Ranks

STATE = ("step", "exp_avg", "exp_avg_sq")
"""What torch's AdamW keeps of each parameter that has had a gradient."""


def select(names: Iterable[str], train: Sequence[str], freeze: Sequence[str]) -> list[str]:
    """Names that match a pattern of `train` and none of `freeze`, in their order.

    Raises:
        TrainError: a pattern matches nothing, or nothing is left.
    """
    names = list(names)
    for key, patterns in (("train", train), ("freeze", freeze)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise TrainError(f"`train.{key}`: no parameter is called `{pattern}`", _near(pattern, names))
    chosen = [name for name in names if _matches(name, train) and not _matches(name, freeze)]
    if not chosen:
        raise TrainError("no parameter is trained: `train.freeze` takes all that `train.train` gives")
    return chosen


def trained_parameters(
    model: nn.Module, train: Sequence[str], freeze: Sequence[str]
) -> dict[str, nn.Parameter]:
    """The chosen ones by name; all others need no gradient from here on.

    Tied weights are one parameter, under the name that comes first: `*embed_tokens*`, not `lm_head*`.
    """
    known = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - known.keys()
    for pattern in (*train, *freeze):
        if _only_tied(pattern, known, tied):
            raise TrainError(
                f"`{pattern}` is tied to another parameter of the model and has no weights of its own",
                "name the parameter that it is tied to, as `*embed_tokens*`",
            )
    chosen = set(select(known, train, freeze))
    for name, parameter in known.items():
        parameter.requires_grad_(name in chosen)
    return {name: parameter for name, parameter in known.items() if name in chosen}


def make_optimizer(parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    """Decay is for matrices: a norm or bias has nothing to be kept small for."""
    matrices = [parameter for parameter in parameters.values() if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters.values() if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """Raises TrainError where its own memory, which the first step takes, is not to be had."""
    try:
        optimizer.step()
    except (RuntimeError, MemoryError) as problem:
        if not out_of_memory(problem):
            raise
        text = "the optimizer's two numbers for each parameter do not fit into memory"
        raise TrainError(
            text, "train fewer parameters (`train`, `freeze`), or in more processes"
        ) from problem


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """One of each. Where no token came, as to an expert of a mixture, it becomes 0.

    AdamW would pass over a parameter without one. In several processes there always is one, because it is a
    sum over them, and moments and decay of a parameter must not depend on how many there are.
    """
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found.append(parameter.grad)
    return found


def scale_(grads: Sequence[Tensor], factor: float) -> None:
    with torch.no_grad():
        for grad in grads:
            grad.mul_(factor)


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], ranks: Ranks
) -> dict[str, Tensor]:
    """`<what>.<parameter>` -> whole tensor, on the CPU. Collective."""
    found = {}
    for name, parameter in parameters.items():
        for what, tensor in optimizer.state.get(parameter, {}).items():
            found[f"{what}.{name}"] = ranks.whole(tensor).contiguous()
    return found


def load_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    state: Mapping[str, Tensor],
    ranks: Ranks,
) -> None:
    """What `state_of` gave, back into an optimizer over the same parameters. Collective."""
    for name, parameter in parameters.items():
        if f"step.{name}" not in state:
            continue
        kept: dict[str, Tensor] = {"step": state[f"step.{name}"].clone()}
        for what in ("exp_avg", "exp_avg_sq"):
            kept[what] = torch.zeros_like(parameter, requires_grad=False)
            ranks.fill_(kept[what], state[f"{what}.{name}"])
        optimizer.state[parameter] = kept


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _only_tied(pattern: str, known: Iterable[str], tied: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in tied) and not any(
        fnmatchcase(name, pattern) for name in known
    )


def _near(pattern: str, names: Sequence[str]) -> str:
    """By the parts of names: a whole name is too long to be near to what was meant."""
    by_part: dict[str, str] = {}
    for name in names:
        for part in name.split("."):
            by_part.setdefault(part, name)
    wanted = [part for part in pattern.replace("*", "").split(".") if part]
    near = [by_part[part] for each in wanted for part in difflib.get_close_matches(each, by_part, 2, 0.5)]
    return "there are " + ", ".join(f"`{name}`" for name in near[:3] or names[:3]) + ", ..."
