"""The same loads on three wires: chat, which is not translated, Messages and Responses."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cells import Cell

CHAT, WIRES = "chat", ("chat", "messages", "responses")

_PACED = Cell(
    name="20 KB paced",
    wire=CHAT,
    open=8,
    apart_ms=125,
    calls=16,
    rounds=2,
    first_bytes=25_000,
    history_calls=12,
    grow_bytes=1000,
    calls_each=4,
    output=200,
    tools=12,
    stream=True,
    gap_ms=5,
    warmup=2,
    direct=True,
)
_PLAIN = Cell(
    name="2 KB",
    wire=CHAT,
    open=32,
    calls=1920,
    rounds=2,
    first_bytes=700,
    grow_bytes=60,
    calls_each=8,
    warmup=12,
    bare=False,
)
_LARGE = replace(
    _PLAIN,
    name="100 KB",
    calls=384,
    first_bytes=85_000,
    grow_bytes=2700,
    history_calls=25,
    tools=12,
    calls_each=14,
    warmup=2,
)


def name_of(load: str, wire: str) -> str:
    """How the cell of a load is called on a wire."""
    return f"{load}, {wire}"


def on_every_wire(load: Cell) -> list[Cell]:
    """The pass-through and the engine itself are measured with chat alone."""
    others = replace(load, direct=False, bare=False)
    return [
        replace(load if wire == CHAT else others, name=name_of(load.name, wire), wire=wire) for wire in WIRES
    ]


PACED = (
    _PACED,
    replace(_PACED, name="400 KB paced", first_bytes=400_000, grow_bytes=2700, history_calls=130),
)
STREAMED = (
    replace(
        _PACED,
        name="20 KB streamed",
        open=1,
        apart_ms=0,
        calls=100,
        calls_each=20,
        gap_ms=0,
        direct=False,
        bare=False,
    ),
)
PLAIN = (
    _PLAIN,
    _LARGE,
    replace(
        _LARGE,
        name="2 MB",
        open=1,
        calls=24,
        first_bytes=1_900_000,
        grow_bytes=10_000,
        history_calls=180,
        calls_each=26,
    ),
)
LOADS = (*PACED, *STREAMED, *PLAIN)
WIRE_CELLS = tuple(cell for load in LOADS for cell in on_every_wire(load))
