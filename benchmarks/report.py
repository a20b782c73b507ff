"""From the results of the rounds to the figures that are held against the bars, and their tables.

Ratios are taken within a round, where both systems had the same machine, and then the median of the
rounds. Not the lowest: a proxy that is starved of its core by a neighbour reads several events at
once and so looks cheaper per event.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]

from benchmarks.client import Result

GYRE, PASS, DIRECT = "gyre", "pass-through", "direct"
MB = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One cell against one system, each figure by rounds."""

    cell: str
    system: str
    cpu_us_call: list[float]
    cpu_us_event: list[float]
    """Empty where nothing is streamed, as are transits where events are not paced."""
    p50_ms: list[float]
    first_byte_p50_ms: list[float]
    transit_p50_ms: list[float]
    transit_p99_ms: list[float]
    calls_per_s: list[float]
    upstream_cpu_us_call: list[float]

    @property
    def spread(self) -> float:
        """Highest over lowest CPU of the rounds: how quiet the machine was."""
        return max(self.cpu_us_call) / max(min(self.cpu_us_call), 1)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A figure and the limit that the project has set for it."""

    name: str
    value: float
    limit: float
    unit: str
    exact: bool = False
    """The value has to be the limit; otherwise it must not be above it."""
    floor: bool = False
    """The value must not be below the limit instead."""

    @property
    def met(self) -> bool:
        if self.exact:
            return self.value == self.limit
        return self.value >= self.limit if self.floor else self.value <= self.limit

    @property
    def bound(self) -> str:
        """The limit, as tables show it."""
        return f">= {self.limit:g}" if self.floor else f"{self.limit:g}"


@dataclass(frozen=True)
class Grid:
    """A table of words: the first column is a name, the others are figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self) -> list[str]:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [self.title]
        for row in (self.head, *self.rows):
            cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
            lines.append("  ".join(cells))
        return lines

    def markdown(self) -> list[str]:
        lines = [f"{self.title[0].upper()}{self.title[1:]}:", ""]
        for row in (self.head, ["---"] * len(self.head), *self.rows):
            lines.append(f"| {' | '.join(row)} |")
        return lines


def figures(cell: str, system: str, rounds: Sequence[Result]) -> Figures:
    return Figures(
        cell=cell,
        system=system,
        cpu_us_call=[result.cpu_s / result.calls * 1e6 for result in rounds],
        cpu_us_event=[result.cpu_s / result.events * 1e6 for result in rounds if result.events],
        p50_ms=[median(result.total_ms) for result in rounds],
        first_byte_p50_ms=[median(result.first_byte_ms) for result in rounds],
        transit_p50_ms=[median(result.transit_ms) for result in rounds if result.transit_ms],
        transit_p99_ms=[_p99(result.transit_ms) for result in rounds if result.transit_ms],
        calls_per_s=[result.calls / result.wall_s for result in rounds],
        upstream_cpu_us_call=[result.upstream_cpu_s / result.calls * 1e6 for result in rounds],
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


class Table:
    """Figures by cell and system; each method gives None where a cell was not run."""

    def __init__(self, rows: Sequence[Figures]) -> None:
        self._rows = {(row.cell, row.system): row for row in rows}

    def get(self, cell: str, system: str = GYRE) -> Figures | None:
        return self._rows.get((cell, system))

    def ratio(self, cell: str, field: str) -> float | None:
        ours, bare = self.get(cell), self.get(cell, PASS)
        return ratio(getattr(ours, field), getattr(bare, field)) if ours and bare else None


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the rounds' ratios."""
    return median(one / max(other, 1e-9) for one, other in zip(ours, theirs, strict=True))


def load_bars(table: Table) -> list[Bar]:
    """The bars on time; those whose cells were left out are left out too."""
    found = [
        _bar("CPU per call, 2 KB x 1 open", table.ratio("2 KB x 1", "cpu_us_call"), 3.5),
        _bar("CPU per call, 2 KB x 32 open", table.ratio("2 KB x 32", "cpu_us_call"), 3.5),
        _bar("CPU per call, 100 KB x 32 open", table.ratio("100 KB x 32", "cpu_us_call"), 6),
        _bar("CPU per call, growth from 32 to 256 open", _growth(table, GYRE), 1.3, "x itself"),
        _bar("CPU, 2 MB + 500K ids, plain", _cpu_ms(table, "2 MB x 1"), 30, "ms"),
        _bar("CPU, 2 MB + 500K ids, streamed", _cpu_ms(table, "2 MB x 1 stream"), 30, "ms"),
        _bar("first byte, 2 MB, plain", table.ratio("2 MB x 1", "first_byte_p50_ms"), 3),
        _bar("first byte, 2 MB, streamed", table.ratio("2 MB x 1 stream", "first_byte_p50_ms"), 3),
        _bar("CPU per event, 1 stream", table.ratio("2 KB x 1 stream", "cpu_us_event"), 2),
        _bar("CPU per event, 32 streams", table.ratio("2 KB x 32 stream", "cpu_us_event"), 2),
        _bar("transit added to an event, p50, 32 paced streams", _added_transit(table), 1, "ms"),
    ]
    return [bar for bar in found if bar is not None]


def _bar(name: str, value: float | None, limit: float, unit: str = "x pass-through") -> Bar | None:
    return None if value is None else Bar(name=name, value=value, limit=limit, unit=unit)


def _growth(table: Table, system: str) -> float | None:
    few, many = table.get("2 KB x 32", system), table.get("2 KB x 256", system)
    return ratio(many.cpu_us_call, few.cpu_us_call) if few and many else None


def _cpu_ms(table: Table, cell: str) -> float | None:
    row = table.get(cell)
    return median(row.cpu_us_call) / 1e3 if row else None


def _added_transit(table: Table) -> float | None:
    ours, direct = table.get("paced stream x 32"), table.get("paced stream x 32", DIRECT)
    if not ours or not direct:
        return None
    return difference(ours.transit_p50_ms, direct.transit_p50_ms)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the rounds' differences."""
    return median(one - other for one, other in zip(ours, theirs, strict=True))


def notes(table: Table) -> list[str]:
    """What no bar is set on but a reader wants to know."""
    found = []
    ours, bare, direct = (table.get("2 KB x 1", system) for system in (GYRE, PASS, DIRECT))
    if bare and direct:
        added = difference(bare.p50_ms, direct.p50_ms)
        found.append(f"latency added at 2 KB x 1, p50: pass-through {added:.2f} ms")
    if ours and direct:
        found[-1] += f", gyre {difference(ours.p50_ms, direct.p50_ms):.2f} ms"
    if growth := _growth(table, PASS):
        found.append(f"growth of the pass-through's own CPU per call from 32 to 256 open: {growth:.2f}x")
    return found


def show(
    rows: Sequence[Figures], bars: Sequence[Bar], remarks: Sequence[str], grids: Sequence[Grid] = ()
) -> str:
    table = Table(rows)
    lines = [machine()]
    if rows:
        lines += ["", _HEAD, *(_line(table, row) for row in rows)]
    for grid in grids:
        lines += ["", *grid.show()]
    lines += ["", f"{'bar':<54}{'measured':>10}{'limit':>8}  unit"]
    for bar in bars:
        verdict = "met" if bar.met else "MISSED"
        lines.append(f"{bar.name:<54}{bar.value:>10.2f}{bar.bound:>8}  {bar.unit:<22}{verdict}")
    return "\n".join([*lines, "", *remarks])


_HEAD = (
    f"{'cell':<20}{'system':<13}{'CPU us/call':>12}{'ratio':>7}{'us/event':>10}{'first byte ms':>15}"
    f"{'p50 ms':>9}{'calls/s':>9}{'engine us':>11}{'spread':>8}"
)


def _line(table: Table, row: Figures) -> str:
    ratio = table.ratio(row.cell, "cpu_us_call") if row.system == GYRE else None
    return (
        f"{row.cell:<20}{row.system:<13}{median(row.cpu_us_call):>12.0f}"
        f"{f'{ratio:.2f}' if ratio else '':>7}"
        f"{f'{median(row.cpu_us_event):.1f}' if row.cpu_us_event else '':>10}"
        f"{median(row.first_byte_p50_ms):>15.2f}{median(row.p50_ms):>9.2f}{median(row.calls_per_s):>9.0f}"
        f"{median(row.upstream_cpu_us_call):>11.0f}{row.spread:>8.2f}"
    )


def markdown(
    rows: Sequence[Figures], bars: Sequence[Bar], remarks: Sequence[str], grids: Sequence[Grid] = ()
) -> str:
    """The same for docs/measurements.md, with less of it."""
    table = Table(rows)
    lines = [f"Machine: {machine()}.", "", "| bar | measured | limit | |", "|---|---|---|---|"]
    for bar in bars:
        verdict = "met" if bar.met else "**missed**"
        lines.append(f"| {bar.name} | {bar.value:.2f} {bar.unit} | {bar.bound} | {verdict} |")
    if rows:
        lines += ["", "| cell | system | CPU us/call | ratio | us/event | first byte ms | spread |"]
        lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = table.ratio(row.cell, "cpu_us_call") if row.system == GYRE else None
        cells = (
            row.cell,
            row.system,
            f"{median(row.cpu_us_call):,.0f}",
            f"{ratio:.2f}" if ratio else "",
            f"{median(row.cpu_us_event):.1f}" if row.cpu_us_event else "",
            f"{median(row.first_byte_p50_ms):.2f}",
            f"{row.spread:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    for grid in grids:
        lines += ["", *grid.markdown()]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in remarks)])


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}"
    )
