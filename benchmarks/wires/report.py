"""What translated calls cost beside chat calls that say the same."""

from __future__ import annotations

from statistics import median

from benchmarks.report import DIRECT, GYRE, PASS, Bar, Figures, Grid, Table, difference, ratio
from benchmarks.wires.cells import CHAT, LOADS, PACED, WIRES, name_of

TRANSIT_LIMIT_MS = 1.0
_HEAD = (
    *("load and wire", "CPU us/call", "x chat", "us/event", "x chat"),
    *("added p50 ms", "added p99 ms", "first byte ms", "over pass-through"),
)


def bars(table: Table) -> list[Bar]:
    """What translation may add to an event on its way; those whose cells were left out are left out too."""
    found = []
    for load in PACED:
        for wire in WIRES[1:]:
            added = _over(table, load.name, wire, DIRECT, "transit_p50_ms")
            if added is not None:
                name = f"transit added to an event, p50, {load.name}, {wire}"
                found.append(Bar(name=name, value=added, limit=TRANSIT_LIMIT_MS, unit="ms"))
    return found


def grids(table: Table) -> list[Grid]:
    """One row per load and wire."""
    rows = [row for load in LOADS for wire in WIRES if (row := _row(table, load.name, wire))]
    return [Grid("chat, which is not translated, and the wires that are", _HEAD, rows)] if rows else []


def _row(table: Table, load: str, wire: str) -> list[str] | None:
    ours, chat = table.get(name_of(load, wire)), table.get(name_of(load, CHAT))
    if ours is None:
        return None
    return [
        name_of(load, wire),
        f"{median(ours.cpu_us_call):,.0f}",
        _times(ours, chat, "cpu_us_call") if wire != CHAT else "",
        f"{median(ours.cpu_us_event):.1f}" if ours.cpu_us_event else "",
        _times(ours, chat, "cpu_us_event") if wire != CHAT and ours.cpu_us_event else "",
        _words(_over(table, load, wire, DIRECT, "transit_p50_ms")),
        _words(_over(table, load, wire, DIRECT, "transit_p99_ms")),
        f"{median(ours.first_byte_p50_ms):.2f}",
        _words(_over(table, load, wire, PASS, "first_byte_p50_ms")),
    ]


def _times(ours: Figures, chat: Figures | None, field: str) -> str:
    return f"{ratio(getattr(ours, field), getattr(chat, field)):.2f}" if chat else ""


def _over(table: Table, load: str, wire: str, system: str, field: str) -> float | None:
    """How much more it is than with chat through `system`; None where that was not measured."""
    ours, other = table.get(name_of(load, wire), GYRE), table.get(name_of(load, CHAT), system)
    if ours is None or other is None or not getattr(ours, field) or not getattr(other, field):
        return None
    return difference(getattr(ours, field), getattr(other, field))


def _words(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
