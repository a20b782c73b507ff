"""Whether trees and a model belong together: told before anything is trained on them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gyre.trainer.data.read import TrainData
from gyre.trainer.errors import TrainError, UnusableError

Floats = npt.NDArray[np.floating]
MAX_GAP = 1.0
"""Nats. Of one model and one tokenizer the mean is well below: engines differ by 0.03 or so in bfloat16, a
policy that is some updates old by little more. Ids of another tokenizer are off by several, and so may a
policy be after many large steps: importance weights say nothing about answers it would hardly give."""


def check_against_model(
    data: TrainData, *, vocab_size: int, max_positions: int | None, reference: bool = False
) -> None:
    """All that will be trained, against the sizes of the model; `max_positions` None: it knows no limit.

    Args:
        reference: it is not the model that is trained but the one that it is compared with.

    Raises:
        TrainError: an id that the model has no embedding of, or a path longer than its positions.
    """
    model = "reference model" if reference else "model"
    most = max(data.members, key=lambda each: each.largest_id)
    if most.largest_id >= vocab_size:
        text = f"`{most.name}` has token id {most.largest_id}, the {model}'s vocabulary is {vocab_size} ids"
        raise TrainError(
            f"these trees are of another tokenizer or vocabulary: {text}",
            "`loss.reference` has to have the tokenizer of the model"
            if reference
            else "train the model that the engine served, with the tokenizer it was recorded with",
        )
    longest = max(data.members, key=lambda each: each.longest)
    if max_positions is not None and longest.longest > max_positions:
        text = f"`{longest.name}` has a path of {longest.longest} tokens, the {model} knows {max_positions}"
        raise TrainError(
            f"{text} positions", f"leave that execution out, or give a {model} that knows longer texts"
        )


def check_gap(behaviour_T: Floats, old_T: Floats, limit: float = MAX_GAP) -> float | None:
    """Mean absolute difference, in nats, between recorded log-probabilities and the trainer's own.

    A tokenizer of the same size has ids that mean something else, which nothing but this can show.

    Args:
        behaviour_T: recorded when the targets were sampled; NaN where there is none to compare.
        old_T: of the same targets, by the model that training starts from.

    Returns:
        The difference; None where there is nothing to compare.

    Raises:
        UnusableError: it is beyond `limit`, or a log-probability of the model is no number.
    """
    known = ~np.isnan(behaviour_T)
    if not known.any():
        return None
    gap = float(np.abs(behaviour_T[known].astype(np.float64) - old_T[known]).mean())
    if not gap <= limit:
        raise UnusableError(
            "these trees were sampled by another model or tokenizer, or by a policy long before this one: "
            "log-probabilities of the model differ from the recorded ones by "
            f"{gap:.3g} nats a token on average, and more than {limit:g} is too much to learn from",
            "train the model that the engine served when the trees were recorded, or record anew with this",
        )
    return gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Log-probabilities that engines recorded under a version with the policy's own, in nats."""

    version: str
    targets: int
    mean: float
    """Of absolute differences."""
    max: float


def check_served(
    behaviour_T: Floats, own_T: Floats, *, version: str, max_gap: float | None
) -> Compared | None:
    """Of targets that were sampled under a version, with the weights that have this name.

    Args:
        behaviour_T: as in `check_gap`.
        max_gap: that no single one may exceed; None: only the mean is looked at, and against `MAX_GAP`.

    Returns:
        None where there is nothing to compare.

    Raises:
        UnusableError: engines have sampled with other weights.
    """
    known = ~np.isnan(behaviour_T)
    if not known.any():
        return None
    gaps = np.abs(behaviour_T[known].astype(np.float64) - own_T[known])
    found = Compared(version=version, targets=len(gaps), mean=float(gaps.mean()), max=float(gaps.max()))
    if found.mean <= MAX_GAP and (max_gap is None or found.max <= max_gap):
        return found
    allowed = f"{max_gap:g} for any of them" if max_gap is not None else f"{MAX_GAP:g} on average"
    raise UnusableError(
        f"what engines sampled as version `{version}` is not of the weights that have this name: "
        f"log-probabilities differ from the model's own by up to {found.max:.3g} nats, and by "
        f"{found.mean:.3g} on average of {found.targets:,} tokens; {allowed} is allowed",
        "engines serve another model, or compute in another precision, than they were told; "
        "`--resume` goes on from the newest checkpoint and starts them with its weights",
    )
