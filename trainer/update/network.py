"""A model and the way in which trees are run through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from gyre.elastic.engine.models.check import vocab_size
from gyre.elastic.engine.models.load import max_positions
from gyre.trainer.data.checks import check_against_model
from gyre.trainer.data.read import TrainData
from gyre.trainer.passes.choose import choose
from gyre.trainer.passes.policy import Policy, load_policy
from gyre.trainer.passes.run import TreePass
from gyre.trainer.settings import PassName, TrainSettings
from gyre.trainer.update.ranks import Ranks


@dataclass(slots=True, kw_only=True)
class Network:
    policy: Policy
    make: Callable[[int], TreePass]
    """The pass for a token budget."""
    _made: dict[int, TreePass] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.policy.device

    def tree_pass(self, budget: int) -> TreePass:
        if budget not in self._made:
            self._made = {budget: self.make(budget)}
        return self._made[budget]


def as_set(policy: Policy, settings: TrainSettings, ranks: Ranks) -> Network:
    """With the pass of the settings, tried out, and then the weights spread over the processes.

    Raises:
        RefusedError: the pass would be wrong for the model.
    """

    def make(budget: int) -> TreePass:
        return choose(policy, settings.tree_pass, budget=budget, recompute=settings.recompute)

    network = Network(policy=policy, make=make)
    network.tree_pass(settings.token_budget)
    ranks.shard(policy, alike=settings.tree_pass in (PassName.FLAT, PassName.PACKED))
    return network


def reference_of(model: str, settings: TrainSettings, ranks: Ranks) -> Network | None:
    """What `kl` is measured from, never trained; None without. `model`: what training starts from."""
    if not settings.loss.kl:
        return None
    place = settings.loss.reference or model
    policy = load_policy(place, dtype=settings.dtype, device=settings.device)
    policy.model.requires_grad_(False)
    return as_set(policy, settings, ranks)


def require_fit(data: TrainData, model: PreTrainedModel, *, reference: bool = False) -> None:
    """TrainError unless the model, or reference model, can compute all that will be trained on."""
    check_against_model(
        data, vocab_size=vocab_size(model), max_positions=positions(model), reference=reference
    )


def positions(model: PreTrainedModel) -> int | None:
    """How long a path may be. None: the model knows no limit, as a recurrent one."""
    config = model.config
    limited = "max_position_embeddings" in {**config.get_text_config().to_dict(), **config.attribute_map}
    return max_positions(config.model_type, config) if limited else None
