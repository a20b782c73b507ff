"""What was measured of the embedded engine, the bars it is held against, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engine.loads import PREFIX, Load
from benchmarks.report import Bar, Grid, ratio

OWN, GENERATE, CONTINUOUS, LLAMACPP = "gyre", "generate", "continuous batching", "llama.cpp"
PLAIN, STREAMED, PREFILL = "plain", "streamed", "prompts"
"""How answers over HTTP come; of the last only a token, so that it is the prompt that takes the time."""
AT_LEAST, AT_LEAST_CONTINUOUS = 0.9, 1.5
MOST = 16
"""As many open requests as have a bar."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """One load in one process; CPU seconds by turns."""

    model: str
    load: Load
    seconds: dict[str, list[float]]
    """By side."""
    same: dict[str, int]
    """Prompts whose greedy output is token for token that of the engine, by side."""

    def ratio(self, side: str) -> float:
        """The engine's tokens per CPU-second over the side's."""
        return ratio(self.seconds[side], self.seconds[OWN])

    def rate(self, side: str) -> float:
        """Tokens per CPU-second."""
        return self.load.tokens / median(self.seconds[side])


@dataclass(frozen=True, kw_only=True)
class Served:
    """One load over HTTP; CPU seconds of the server's process by rounds."""

    model: str
    engine: str
    kind: str
    load: Load
    cpu_s: list[float]

    @property
    def rate(self) -> float:
        """Tokens per CPU-second: those of the prompts where prompts are what takes the time."""
        tokens = self.load.open * self.load.prompt if self.kind == PREFILL else self.load.tokens
        return tokens / median(self.cpu_s)


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Wall-clock seconds by rounds."""

    model: str
    prefix: int
    conversation: int
    cold_s: list[float]
    """To the first token, nothing known."""
    warm_s: list[float]
    """The same with the prefix kept."""
    prefill_s: list[float]
    """Of the conversation."""
    steps: list[dict[str, float]]
    """Of its hand-over, and its size in MB."""
    stop_s: list[float]
    """The longest time without a token, of any stream, while weights were read and published."""
    usual_s: list[float]
    """The longest before that."""

    @property
    def warm_ratio(self) -> float:
        return ratio(self.warm_s, self.cold_s)

    @property
    def moved_s(self) -> list[float]:
        return [sum(taken for name, taken in steps.items() if name != "MB") for steps in self.steps]

    @property
    def moved_ratio(self) -> float:
        return ratio(self.moved_s, self.prefill_s)


@dataclass
class Results:
    throughput: list[Throughput] = field(default_factory=list)
    moves: list[Moves] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)

    def bars(self) -> list[Bar]:
        return [*_throughput_bars(self.throughput), *_move_bars(self.moves)]

    def grids(self) -> list[Grid]:
        made = (_throughput_grid(self.throughput), _move_grid(self.moves), _served_grid(self.served))
        return [grid for grid in made if grid.rows]


def _throughput_bars(rows: Sequence[Throughput]) -> Iterator[Bar]:
    for row in rows:
        if row.load.short:
            continue
        name = f"{row.model}, {row.load.name}"
        if CONTINUOUS in row.seconds:
            value = row.ratio(CONTINUOUS)
            yield Bar(name=name, value=value, limit=AT_LEAST_CONTINUOUS, unit=f"x {CONTINUOUS}", floor=True)
        elif row.load.open == MOST:
            yield Bar(name=name, value=row.ratio(GENERATE), limit=AT_LEAST, unit=f"x {GENERATE}", floor=True)


def _move_bars(rows: Sequence[Moves]) -> Iterator[Bar]:
    for row in rows:
        if row.prefix < PREFIX:
            continue
        name = f"{row.model}, first token with {row.prefix:,} cached"
        yield Bar(name=name, value=row.warm_ratio, limit=0.1, unit="x without")
        name = f"{row.model}, hand-over of {row.conversation:,} tokens"
        yield Bar(name=name, value=row.moved_ratio, limit=0.2, unit="x computing them")
        yield Bar(name=f"{row.model}, swap stops generation", value=max(row.stop_s), limit=1, unit="s")


def _throughput_grid(rows: Sequence[Throughput]) -> Grid:
    head = ("tokens per CPU-second", OWN, GENERATE, "x", CONTINUOUS, "x", "same greedy outputs")
    return Grid("the engine in process", head, [_throughput_row(row) for row in rows])


def _throughput_row(row: Throughput) -> tuple[str, ...]:
    cells = [f"{row.model}, {row.load.name}", f"{row.rate(OWN):,.0f}"]
    for side in (GENERATE, CONTINUOUS):
        measured = side in row.seconds
        cells += [f"{row.rate(side):,.0f}", f"{row.ratio(side):.2f}"] if measured else ["", ""]
    return (*cells, ", ".join(f"{count}/{row.load.open}" for count in row.same.values()))


def _served_grid(rows: Sequence[Served]) -> Grid:
    """A row for each load, a column for each engine."""
    rates = {(row.model, row.load.open, row.kind, row.engine): row.rate for row in rows}
    head = ("tokens per CPU-second, HTTP", OWN, LLAMACPP)
    lines: dict[str, tuple[str, ...]] = {}
    for row in rows:
        cells = [rates.get((row.model, row.load.open, row.kind, engine)) for engine in (OWN, LLAMACPP)]
        name = f"{row.model}, {row.load.open} x ({row.load.prompt} + {row.load.output}), {row.kind}"
        lines[name] = (name, *("" if cell is None else f"{cell:,.0f}" for cell in cells))
    return Grid("the engine over HTTP", head, list(lines.values()))


def _move_grid(rows: Sequence[Moves]) -> Grid:
    head = ("seconds", *(row.model for row in rows))
    lines = [
        ("first token, nothing known", *(f"{median(row.cold_s):.2f}" for row in rows)),
        ("first token, prefix kept", *(f"{median(row.warm_s):.3f}" for row in rows)),
        ("computing the conversation", *(f"{median(row.prefill_s):.2f}" for row in rows)),
        ("handing it over", *(f"{median(row.moved_s):.3f}" for row in rows)),
        *(
            (f"of it {name}", *(f"{median(steps[name] for steps in row.steps):.3f}" for row in rows))
            for name in ("export", "encode", "decode", "import")
        ),
        ("MB", *(f"{row.steps[0]['MB']:.0f}" for row in rows)),
        ("longest gap between tokens, swapping", *(f"{max(row.stop_s):.2f}" for row in rows)),
        ("longest gap between tokens, before", *(f"{max(row.usual_s):.2f}" for row in rows)),
    ]
    return Grid("what stays and what moves", head, lines if rows else [])
