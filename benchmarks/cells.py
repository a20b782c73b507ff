"""What is measured: the cells, in the order they run, and the bars that their figures are held to."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One load: `open` agents that call without pause, `calls` measured calls in all."""

    name: str
    open: int
    calls: int
    first_bytes: int
    """Size of an execution's first body ..."""
    grow_bytes: int
    """... and by how much each later one is longer."""
    calls_each: int
    """Calls of one execution; then the agent begins another."""
    output: int = 64
    """Tokens of an answer; in a stream so many events."""
    wire: str = ""
    """Agents with tools, who speak this wire (`benchmarks.wires`); empty: agents without, who speak chat."""
    history_calls: int = 0
    """Tool calls that an agent has behind it before the clock runs; its first body is then its second."""
    tools: int = 0
    stream: bool = False
    gap_ms: int = 0
    """Time between the events of a stream."""
    delay_ms: int = 0
    """Time before an answer."""
    turns: int = 1
    """How often in a round the systems take turns, with so much fewer calls each."""
    warmup: int = 8
    """Calls of each agent before the clock runs."""
    direct: bool = False
    """Measured without any proxy too."""
    bare: bool = True
    """Measured through the pass-through too."""
    rounds: int = 5
    """At most so many."""
    apart_ms: int = 0
    """How much later than the agent before it each one begins, so that they do not call in step."""
    fresh: bool = False
    """Needs a new proxy: for its peak memory."""

    @property
    def last_bytes(self) -> int:
        return self.first_bytes + self.grow_bytes * self.calls_each

    @property
    def timed(self) -> bool:
        """Measured for its times, at a load that leaves the cores idle, and so ahead of other work."""
        return self.gap_ms > 0

    @property
    def calls_per_agent(self) -> int:
        return -(-self.calls // self.turns // self.open)


SMALL = Cell(
    name="2 KB x 1",
    open=1,
    calls=1800,
    turns=3,
    first_bytes=800,
    grow_bytes=340,
    calls_each=8,
    warmup=200,
    direct=True,
)
LARGE = Cell(
    name="100 KB x 32",
    open=32,
    calls=1280,
    first_bytes=60_000,
    grow_bytes=2700,
    calls_each=30,
    tools=12,
    warmup=4,
)
HUGE = Cell(
    name="2 MB x 1",
    open=1,
    calls=160,  # so many that sealing what they record is part of every round, not of one in three
    first_bytes=1_960_000,
    grow_bytes=10_000,
    calls_each=8,
    tools=12,
    warmup=4,
)
STREAM = replace(
    SMALL, name="2 KB x 1 stream", calls=200, turns=1, output=200, grow_bytes=880, calls_each=3, stream=True
)

CELLS = (
    SMALL,
    replace(SMALL, name="2 KB x 32", open=32, calls=4800, warmup=20, direct=False),
    replace(SMALL, name="2 KB x 256", open=256, calls=6144, warmup=8, direct=False),
    LARGE,
    HUGE,
    replace(HUGE, name="2 MB x 1 stream", calls=40, stream=True),
    replace(STREAM, warmup=20, direct=False),
    replace(STREAM, name="2 KB x 32 stream", open=32, calls=480, warmup=3, direct=False),
    replace(STREAM, name="paced stream x 32", open=32, calls=96, output=50, gap_ms=20, warmup=1),
)
MEMORY = replace(HUGE, name="2 MB x 32", open=32, calls=96, calls_each=4, delay_ms=200, warmup=0, fresh=True)
LOG = Cell(
    name="300 calls to 700K tokens",
    open=1,
    calls=300,
    first_bytes=12_000,
    grow_bytes=9330,
    calls_each=300,
    output=400,
    tools=12,
    warmup=0,
    fresh=True,
)


def quick(cell: Cell) -> Cell:
    """The same load with fewer calls: for a look, not for the record."""
    calls = max(cell.open, cell.calls // 5)
    return replace(cell, calls=calls, warmup=min(cell.warmup, 4))


def quick_log() -> Cell:
    return replace(LOG, name="60 calls to 140K tokens", calls=60, calls_each=60)
