"""What an export reads, and what it reports. Values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree


class Format(StrEnum):
    """What can be written."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ATIF = "atif"
    VERL = "verl"
    TRL = "trl"
    SLIME = "slime"
    AREAL = "areal"
    SKYRL = "skyrl"
    PRIME_RL = "prime-rl"


class Source(Protocol):
    """A folder of trees that was read; `read_trees` gives one."""

    @property
    def log(self) -> str | Path | None:
        """The log folder the trees were built from."""

    def executions(self) -> Sequence[ExecutionSummary]:
        """All of them, those that could not be rebuilt too, in stored order."""

    def advantages(self) -> Mapping[AttemptKey, float]:
        """Those of the executions that are trained."""

    def __iter__(self) -> Iterator[tuple[ExecutionSummary, ExecutionTree]]:
        """What could be rebuilt, in stored order."""


@dataclass(slots=True)
class ExportReport:
    """What was written and what was not."""

    format: Format
    path: Path
    executions: int = 0
    rows: int = 0
    """Rows, or documents of `atif`."""
    tokens: int = 0
    """Of all rows: what paths share counts in each. Of `atif` the sampled ones."""
    targets: int = 0
    """Tokens that the rows train, each once."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Executions that are not in it, by reason."""
