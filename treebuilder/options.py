"""What a build can be told."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

CAP = 5
"""Trajectories kept per execution: QwenGyre's J_max (arXiv 2609.33848)."""


class Rule(StrEnum):
    """Which trajectories are kept."""

    QWENGYRE = "qwengyre"
    """Role priority and a draw by unmasked targets; the cap counts contexts, stubs ride along."""
    PAPER = "paper"
    """The same with every leaf counted, stubs too: the literal rule."""
    COVERAGE = "coverage"
    """Always the context that brings most new targets."""
    ALL = "all"


class Options(NamedTuple):
    cap: int = CAP
    seed: int = 0
    rule: Rule = Rule.QWENGYRE
