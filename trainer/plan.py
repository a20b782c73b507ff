"""What a run would do and what it would take, without doing any of it: `gyre train --dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from gyre.elastic.engine.models import folder
from gyre.elastic.engine.models.quiet import quietly
from gyre.elastic.engine.models.tiny import make_tiny
from gyre.trainer.config import as_table, as_toml
from gyre.trainer.data.order import batches
from gyre.trainer.data.read import Census, TrainData, in_words, read_groups
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.split import split
from gyre.trainer.pack.work import Work, measure
from gyre.trainer.passes.policy import device_of
from gyre.trainer.settings import Device, PassName, TrainSettings
from gyre.trainer.update import origin
from gyre.trainer.update.batch import computed, deal
from gyre.trainer.update.cursor import total_updates, trees_of
from gyre.trainer.update.memory import Memory, Sizes, empty_model, estimate, sizes
from gyre.trainer.update.network import require_fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    settings: TrainSettings
    census: Census
    batches: int
    """Of an epoch."""
    updates: int
    """Of all epochs."""
    device: str
    epoch: Work
    """Of one epoch, update by update, as pieces: tokens repeated by splits are counted."""
    sizes: Sizes
    memory: Memory

    @property
    def toml(self) -> str:
        return as_toml(self.settings)

    def as_json(self) -> dict[str, Any]:
        return {
            "settings": as_table(self.settings),
            "data": asdict(self.census),
            "batches_per_epoch": self.batches,
            "updates": self.updates,
            "device": self.device,
            "tokens_per_epoch": asdict(self.epoch) | {"shared": self.epoch.shared},
            "model": asdict(self.sizes),
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
        }

    def tables(self) -> dict[str, list[tuple[str, object]]]:
        """For people, by title."""
        return {
            "data": self._data(),
            "training": self._training(),
            "tokens of an epoch": self._tokens(),
            "memory, an estimate": self._memory(),
        }

    def _data(self) -> list[tuple[str, object]]:
        census = self.census
        return [
            ("executions", census.executions),
            ("trained", census.trained),
            *((f"left out: {in_words(reason)}", count) for reason, count in census.left_out.items()),
            ("groups", census.groups),
            ("of them without variance", census.alike),
            ("targets", census.targets),
        ]

    def _training(self) -> list[tuple[str, object]]:
        """What `auto` takes as a pass depends on the piece, and on what the model allows."""
        chosen, tree_pass = self.settings, self.settings.tree_pass
        return [
            ("parameters", self.sizes.parameters),
            ("of them trained", self.sizes.trained),
            ("device", self.device),
            ("pass", "auto: by piece" if tree_pass is PassName.AUTO else tree_pass),
            ("batches of an epoch", f"{self.batches:,}, of up to {chosen.groups_per_batch:,} groups"),
            ("updates of a batch", f"up to {chosen.updates_per_batch:,}"),
            ("epochs", chosen.epochs),
            ("updates", self.updates),
        ]

    def _tokens(self) -> list[tuple[str, object]]:
        epoch = self.epoch
        return [
            ("path by path", epoch.flat_tokens),
            ("as trees", epoch.tokens),
            ("of them repeated by splits", epoch.context),
            ("saved", f"{epoch.shared:.1%}"),
            ("longest path", epoch.longest_path),
        ]

    def _memory(self) -> list[tuple[str, object]]:
        parts = asdict(self.memory) | {"total": self.memory.total}
        shown = {_PARTS.get(name, name): round(value / 2**20) for name, value in parts.items()}
        return [(name, f"{value:,} MiB") for name, value in shown.items() if value or name == "total"]


_PARTS = {"keys": "K/V of prefixes", "head": "logits"}


def make_plan(trees: Path, model: str, settings: TrainSettings) -> Plan:
    """Raises what `train` raises about trees, settings and model, as far as no weights are needed."""
    data = read_groups(trees, settings)
    network = empty_network(model)
    require_fit(data, network)
    if settings.loss.reference:
        require_fit(data, empty_network(settings.loss.reference), reference=True)
    works = _works(data, settings)
    epoch = sum(works, Work())
    sized = sizes(network, settings.train, settings.freeze)
    largest = max(works, key=lambda work: work.tokens, default=Work())
    return Plan(
        settings=settings,
        census=data.census,
        batches=len(batches(data.groups, settings, 0)),
        updates=total_updates(data, settings),
        device=device_name(settings),
        epoch=epoch,
        sizes=sized,
        memory=estimate(sized, settings, replace(largest, longest_path=epoch.longest_path)),
    )


def device_name(settings: TrainSettings) -> str:
    """A GPU that is asked for need not be here: one may plan elsewhere."""
    return str(device_of(settings.device)) if settings.device is Device.AUTO else str(settings.device)


def empty_network(model: str) -> PreTrainedModel:
    """All of a model but its numbers. Raises EngineError or TrainError for what is none."""
    place = origin.model_folder(model)
    if place is None:
        return make_tiny().model
    with quietly():
        config = folder.read_config(place)
        folder.require_causal_lm(place, config)
    return empty_model(config)


def _works(data: TrainData, settings: TrainSettings) -> list[Work]:
    """Of each update of the first epoch; those that have nothing to compute are left out."""
    found = []
    for groups in batches(data.groups, settings, 0):
        for part in deal(trees_of(data, groups), settings.updates_per_batch):
            if trees := computed(part, settings.loss):
                found.append(_work(trees, settings.token_budget))
    return found


def _work(trees: list[TrainTree], budget: int) -> Work:
    """Pieces repeat context that the whole forest has once; paths are those of the forest."""
    forest = merge(trees).forest
    pieces = split(forest, budget)
    whole = measure(forest)
    return replace(
        whole, tokens=sum(len(piece) for piece in pieces), context=sum(piece.context for piece in pieces)
    )
