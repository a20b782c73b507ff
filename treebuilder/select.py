"""Which trajectories of an execution are kept: at most five (QwenGyre, arXiv 2609.33848). Pure.

The paper's rule: leaves have a role, and from the first class of `main > main_summary > sub >
sub_summary` that still has unmasked targets a leaf is drawn with a probability proportional to its
unmasked targets; its path is admitted and masked; until nothing is left or the cap is reached.

Here the cap counts contexts. An output that the next call of its context did not go on from, because
the template renders it otherwise, is a stub beside the path; it rides with the path for nothing, or
with such templates 5 of 380 outputs would be trained. `Rule.PAPER` is the literal rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.trees import Role

ORDER = (Role.MAIN, Role.MAIN_SUMMARY, Role.SUB, Role.SUB_SUMMARY, Role.UNKNOWN)
"""Side calls are in no class: only `Rule.ALL` takes them."""


@dataclass(slots=True)
class Leaf:
    """A path that could be kept. Nodes are numbers; only those with targets matter."""

    node: int
    path: list[int]
    context_id: int
    role: Role


@dataclass(slots=True)
class Unit:
    """What takes one slot: a context's path, and the stubs that ride with it."""

    leaf: Leaf
    stubs: list[Leaf] = field(default_factory=list)

    @property
    def role(self) -> Role:
        return self.leaf.role


@dataclass(slots=True)
class Admitted:
    slot: int
    leaf: Leaf
    stub: bool
    targets: int
    """Targets that it is the first to bring."""


def select(units: list[Unit], weights: dict[int, int], options: Options, name: str) -> list[Admitted]:
    """Choose among `units`.

    Args:
        weights: number of targets by node, for nodes that have any.
        name: of the execution's attempt; with the seed it decides every draw.
    """
    left = dict(weights)
    waiting = [unit for unit in units if unit.role is not Role.SIDE or options.rule is Rule.ALL]
    kept: list[Admitted] = []
    slot = 0
    while waiting and (slot < options.cap or options.rule is Rule.ALL):
        gains = [_gain(unit, left) for unit in waiting]
        at = _next(waiting, gains, options, f"{options.seed}/{name}/{slot}")
        if at is None:
            break
        kept += _admit(waiting.pop(at), slot, left)
        slot += 1
    return kept


def _next(units: list[Unit], gains: list[int], options: Options, name: str) -> int | None:
    """Which unit is taken next; None when nothing trainable is left."""
    best = max(gains)
    if not best:
        return None
    match options.rule:
        case Rule.COVERAGE:
            return gains.index(best)
        case Rule.ALL:
            return next(i for i, gain in enumerate(gains) if gain)
    for role in ORDER:
        of_class = [i for i, unit in enumerate(units) if unit.role is role and gains[i]]
        if of_class:
            return _draw(of_class, [gains[i] for i in of_class], name)
    return None


def _draw(items: list[int], weights: list[int], name: str) -> int:
    """One of `items` with probability proportional to its weight; the same for the same name."""
    at = xxhash.xxh3_64_intdigest(name.encode()) % sum(weights)
    for item, weight in zip(items, weights, strict=True):
        at -= weight
        if at < 0:
            return item
    raise AssertionError("weights do not add up")


def _gain(unit: Unit, left: dict[int, int]) -> int:
    """Unmasked targets of the path and its stubs, each once."""
    if not unit.stubs:
        return sum(left[node] for node in unit.leaf.path if node in left)
    nodes = {node for leaf in _leaves(unit) for node in leaf.path}
    return sum(left[node] for node in nodes if node in left)


def _admit(unit: Unit, slot: int, left: dict[int, int]) -> list[Admitted]:
    kept = []
    for leaf in _leaves(unit):
        targets = sum(left.pop(node, 0) for node in leaf.path)
        if targets or leaf is unit.leaf:
            kept.append(Admitted(slot, leaf, leaf is not unit.leaf, targets))
    return kept


def _leaves(unit: Unit) -> Iterable[Leaf]:
    yield unit.leaf
    yield from unit.stubs
