"""What was measured of training on trees, the bars it is held against, and its tables. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.report import MB, Bar, Grid, ratio
from benchmarks.train.cases import SMOLLM2

PACKED, DFS = "packed", "dfs"
OF_FLOPS, OF_TOKENS, OF_MEMORY = 0.85, 0.8, 1.15


def flat(rows: int) -> str:
    """The side that computes so many paths at once."""
    return f"flat x {rows}"


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One case in one process; CPU seconds of a step by rounds."""

    model: str
    case: str
    short: bool
    tokens: int
    flat_tokens: int
    flops: float
    flat_flops: float
    seconds: dict[str, list[float]]
    """By side."""

    @property
    def best_flat(self) -> str:
        own = (name for name in self.seconds if name not in (PACKED, DFS))
        return min(own, key=lambda name: median(self.seconds[name]))

    def faster(self, side: str) -> float:
        """How many times as fast as path by path."""
        return ratio(self.seconds[self.best_flat], self.seconds[side])

    @property
    def of_tokens(self) -> float:
        return self.flat_tokens / self.tokens

    @property
    def of_flops(self) -> float:
        return self.flat_flops / self.flops


@dataclass(frozen=True, kw_only=True)
class Peak:
    """One side, one step."""

    model: str
    case: str
    short: bool
    side: str
    held_bytes: int
    """Model and gradients, before the step."""
    peak_bytes: int

    @property
    def taken(self) -> int:
        return self.peak_bytes - self.held_bytes


@dataclass
class Results:
    steps: list[Steps] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)

    def bars(self) -> list[Bar]:
        return [*_step_bars(self.steps), *_peak_bars(self.peaks)]

    def grids(self) -> list[Grid]:
        made = (_step_grid(self.steps), _peak_grid(self.peaks))
        return [grid for grid in made if grid.rows]


def _step_bars(rows: Sequence[Steps]) -> Iterator[Bar]:
    """For the pass that is faster there."""
    for row in rows:
        if row.short:
            continue
        side = max((PACKED, DFS), key=row.faster)
        name, faster = f"{row.model}, {row.case}, {side}", row.faster(side)
        yield Bar(
            name=name, value=faster / row.of_flops, limit=OF_FLOPS, unit="of the FLOP ratio", floor=True
        )
        if row.model == SMOLLM2:
            yield Bar(
                name=name,
                value=faster / row.of_tokens,
                limit=OF_TOKENS,
                unit="of the token ratio",
                floor=True,
            )


def _peak_bars(rows: Sequence[Peak]) -> Iterator[Bar]:
    """For the pass that takes less there."""
    for key, taken in _by_case(rows).items():
        side = min((PACKED, DFS), key=lambda side: taken[side].taken)
        if not taken[side].short:
            name = f"{', '.join(key)}, {side}, memory"
            value = taken[side].taken / taken[flat(1)].taken
            yield Bar(name=name, value=value, limit=OF_MEMORY, unit=f"x {flat(1)}")


def _by_case(rows: Sequence[Peak]) -> dict[tuple[str, str], dict[str, Peak]]:
    found: dict[tuple[str, str], dict[str, Peak]] = {}
    for row in rows:
        found.setdefault((row.model, row.case), {})[row.side] = row
    return found


def _step_grid(rows: Sequence[Steps]) -> Grid:
    head = (
        "",
        "tokens",
        "of paths",
        "token ratio",
        "FLOP ratio",
        "flat s",
        "packed s",
        "dfs s",
        "packed",
        "dfs",
    )
    lines = [
        (
            f"{row.model}, {row.case}",
            f"{row.tokens:,}",
            f"{row.flat_tokens:,}",
            f"{row.of_tokens:.2f}",
            f"{row.of_flops:.2f}",
            *(f"{median(row.seconds[side]):.2f}" for side in (row.best_flat, PACKED, DFS)),
            *(f"{row.faster(side):.2f} x" for side in (PACKED, DFS)),
        )
        for row in rows
    ]
    return Grid("a step on trees beside one path by path, CPU", head, lines)


def _peak_grid(rows: Sequence[Peak]) -> Grid:
    head = ("MB on top of the model", flat(1), PACKED, DFS)
    lines = [
        (", ".join(key), *(f"{taken[side].taken / MB:,.0f}" for side in (flat(1), PACKED, DFS)))
        for key, taken in _by_case(rows).items()
    ]
    return Grid("peak memory of a step", head, lines)
