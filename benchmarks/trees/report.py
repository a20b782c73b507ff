"""What was measured of trees, the bars it is held against, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from benchmarks.report import MB, Bar, Grid

_GROWTH = 1.1
"""Linear, with room for what noise does to a slope over four points."""


@dataclass(frozen=True, kw_only=True)
class FromMemory:
    """The token tree of one execution, from full prompts in memory; times by rounds."""

    scale: float
    calls: int
    logged_tokens: int
    """Of all prompts and outputs."""
    new_tokens: int
    tree_tokens: int
    read_s: list[float]
    """CPU for reading all of it once."""
    tree_s: list[float]
    held_bytes: int
    """By the process with its input, before any tree."""
    peak_bytes: int

    @property
    def memory_ratio(self) -> float:
        """Input and tree, by what making the tree added, over the input."""
        return 1 + (self.peak_bytes - self.held_bytes) / (4 * self.logged_tokens)

    @property
    def read_ratio(self) -> float:
        return median(tree / read for tree, read in zip(self.tree_s, self.read_s, strict=True))


@dataclass(frozen=True, kw_only=True)
class FromLog:
    """A group of executions, from the log on disk to trees on disk; times by rounds."""

    scale: float
    executions: int
    calls: int
    logged_tokens: int
    new_tokens: int
    log_bytes: int
    tree_bytes: int
    build_s: list[float]
    """CPU of the build, children included."""
    system_s: list[float]
    """The system's part of that: most of it memory that the process had not touched before."""
    whole_s: list[float]
    """CPU of the whole process, from its start."""
    peak_bytes: int
    delivered: float
    """Targets over sampled tokens of trainable calls."""
    kept: float
    """Targets on admitted paths over targets."""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    name: str
    calls: int
    peer_percent: float
    delivered: float
    kept: float
    contexts: int
    quarantined: int


@dataclass
class Results:
    memory: list[FromMemory] = field(default_factory=list)
    logs: list[FromLog] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)

    def bars(self) -> list[Bar]:
        return [*_memory_bars(self.memory), *_log_bars(self.logs), *_case_bars(self.cases)]

    def grids(self) -> list[Grid]:
        made = (_memory_grid(self.memory), _log_grid(self.logs), _case_grid(self.cases))
        return [grid for grid in made if grid.rows]


def exponent(tokens: Sequence[int], seconds: Sequence[float]) -> float:
    """Of seconds in tokens: the slope of the line through their logarithms. The lowest of the rounds are
    taken, since here a neighbour can only add."""
    return float(np.polyfit(np.log(tokens), np.log(seconds), 1)[0])


def _memory_bars(sizes: Sequence[FromMemory]) -> list[Bar]:
    full = [size for size in sizes if size.scale == 1]
    bars = []
    for size in full:
        name = f"token tree, {size.logged_tokens / 1e6:.1f}M ids in memory"
        bars += [
            Bar(name=f"{name}, CPU", value=median(size.tree_s), limit=0.11, unit="s"),
            Bar(name=name, value=size.read_ratio, limit=8, unit="x reading it"),
            Bar(name=f"{name}, peak memory", value=size.memory_ratio, limit=1.2, unit="x input"),
        ]
    if len(sizes) > 1:
        growth = exponent([size.logged_tokens for size in sizes], [min(size.tree_s) for size in sizes])
        bars.append(Bar(name="token tree, exponent in logged tokens", value=growth, limit=_GROWTH, unit=""))
    return bars


def _log_bars(sizes: Sequence[FromLog]) -> list[Bar]:
    bars = []
    for size in (size for size in sizes if size.scale == 1):
        name = f"{size.executions} executions, log to trees, CPU"
        bars.append(Bar(name=name, value=median(size.build_s), limit=2, unit="s"))
    if len(sizes) > 1:
        growth = exponent([size.new_tokens for size in sizes], [min(size.build_s) for size in sizes])
        bars.append(Bar(name="log to trees, exponent in new tokens", value=growth, limit=_GROWTH, unit=""))
    delivered = [size.delivered for size in sizes]
    if delivered:
        name = "long executions, delivered share"
        bars.append(Bar(name=name, value=100 * min(delivered), limit=100, unit="%", exact=True))
    return bars


def _case_bars(cases: Sequence[CaseResult]) -> list[Bar]:
    if not cases:
        return []
    least = min(case.delivered for case in cases)
    name = f"{len(cases)} cases, least delivered share"
    return [Bar(name=name, value=100 * least, limit=100, unit="%", exact=True)]


def _memory_grid(sizes: Sequence[FromMemory]) -> Grid:
    head = ("calls", "logged ids", "new ids", "read ms", "tree ms", "x read", "peak / input")
    rows = [
        (
            f"{size.calls}",
            f"{size.logged_tokens / 1e6:.1f}M",
            f"{size.new_tokens / 1e6:.2f}M",
            f"{1e3 * median(size.read_s):.1f}",
            f"{1e3 * median(size.tree_s):.1f}",
            f"{size.read_ratio:.2f}",
            f"{size.memory_ratio:.2f}",
        )
        for size in sizes
    ]
    return Grid("token tree of one execution, from full ids in memory", head, rows)


def _log_grid(sizes: Sequence[FromLog]) -> Grid:
    counted = ("executions", "calls", "logged ids", "new ids", "log MB", "trees MB")
    head = (*counted, "build s", "of it system", "process s", "peak MB", "delivered", "kept")
    rows = [
        (
            f"{size.executions}",
            f"{size.calls}",
            f"{size.logged_tokens / 1e6:.0f}M",
            f"{size.new_tokens / 1e6:.1f}M",
            f"{size.log_bytes / MB:.0f}",
            f"{size.tree_bytes / MB:.0f}",
            f"{median(size.build_s):.2f}",
            f"{median(size.system_s):.2f}",
            f"{median(size.whole_s):.2f}",
            f"{size.peak_bytes / MB:.0f}",
            f"{size.delivered:.1%}",
            f"{size.kept:.1%}",
        )
        for size in sizes
    ]
    return Grid("a group of executions, from the log on disk to trees on disk", head, rows)


def _case_grid(cases: Sequence[CaseResult]) -> Grid:
    head = ("case", "calls", "contexts", "undecided", "delivered", "kept", "NeMo Gym delivers")
    rows = [
        (
            case.name,
            f"{case.calls}",
            f"{case.contexts}",
            f"{case.quarantined}",
            f"{case.delivered:.1%}",
            f"{case.kept:.1%}",
            f"{case.peer_percent:g} %",
        )
        for case in cases
    ]
    return Grid("share of sampled tokens that reaches training", head, rows)
