"""Which executions stand in which part, and which of a part in one row group. Pure.

Only the log decides, never what was built before or by how many processes: the same log gives the same
files. Executions stand in the order in which they appear in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gyre.treebuilder.offline.survey import Found

Item = TypeVar("Item")


class Limits(NamedTuple):
    """When a part or a row group is full; an execution is never divided."""

    part_bytes: int = 256 << 20
    """New token bytes: of prompt suffixes and outputs, 4 each."""
    part_executions: int = 8192
    group_bytes: int = 32 << 20
    """One execution alone is read from so much, at most twice."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    groups: tuple[tuple[Found, ...], ...]

    @property
    def executions(self) -> list[Found]:
        return [one for group in self.groups for one in group]


def name_of(number: int) -> str:
    return f"part-{number:05d}"


def split(found: Iterable[Found], limits: Limits) -> list[Part]:
    parts = _filled(found, _weight, limits.part_bytes, limits.part_executions)
    return [
        Part(name_of(number), tuple(map(tuple, _filled(part, _weight, limits.group_bytes, len(part)))))
        for number, part in enumerate(parts)
    ]


def shares(part: Part, count: int) -> list[Part]:
    """The part's groups in at most `count` runs of about the same weight, for as many processes."""
    whole = sum(_weight(one) for one in part.executions) + len(part.groups)
    runs: list[list[tuple[Found, ...]]] = [[]]
    weight = 0.0
    for group in part.groups:
        if runs[-1] and weight >= len(runs) * whole / count:
            runs.append([])
        runs[-1].append(group)
        weight += sum(map(_weight, group)) + 1
    return [Part(part.name, tuple(run)) for run in runs]


def _weight(one: Found) -> int:
    return one.new_bytes


def _filled(
    items: Iterable[Item], weight: Callable[[Item], int], most_bytes: int, most_items: int
) -> Sequence[list[Item]]:
    filled: list[list[Item]] = []
    size = 0
    for item in items:
        new = weight(item)
        if not filled or size + new > most_bytes or len(filled[-1]) >= most_items:
            filled.append([])
            size = 0
        filled[-1].append(item)
        size += new
    return filled
