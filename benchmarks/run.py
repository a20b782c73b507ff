"""Starts engine, proxies and agents, rebuilds executions, and prints what gyre costs against the bars.

Engine and agents share one core, the system under test has another. gyre and the pass-through take
turns in every round, so that both see the same machine; see `benchmarks.report` for what counts.
"""

from __future__ import annotations

import argparse
import json
import pstats
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import duckdb

from benchmarks import report
from benchmarks.cells import CELLS, LOG, MEMORY, Cell, quick, quick_log
from benchmarks.client import Result
from benchmarks.engine.report import Results as EngineResults
from benchmarks.engine.run import measure as measure_engine
from benchmarks.live.report import Results as LiveResults
from benchmarks.live.run import measure as measure_live
from benchmarks.material import make_text
from benchmarks.processes import (
    LOAD_CORE,
    ROOT,
    SYSTEM_CORE,
    Server,
    ahead_of_others,
    may_be_ahead,
    module,
    peak_memory,
    pin,
    set_real_time,
)
from benchmarks.report import DIRECT, GYRE, MB, PASS, Bar, Figures
from benchmarks.train.report import Results as TrainResults
from benchmarks.train.run import measure as measure_train
from benchmarks.trees.report import Results
from benchmarks.trees.run import measure as measure_trees
from benchmarks.wires import report as wires_report
from benchmarks.wires.cells import WIRE_CELLS

COMMAND = ("-m", "gyre.cli.main")


@dataclass
class Bench:
    """The servers of one run and what was measured."""

    upstream: Server
    scratch: Path
    text: Path
    """The material's text, which all agents read."""
    rounds: int
    recording: bool
    """Whether gyre is measured, and not the pass-through alone."""
    rows: list[Figures] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    answered: int = 0
    """By the long-lived gyre, whose log is counted in the end."""

    def passthrough(self) -> Server:
        return Server(module("benchmarks.passthrough", "--upstream", self.upstream.url), SYSTEM_CORE)

    def gyre(self, logs: Path, *, profile: Path | None = None) -> Server:
        under = ["-m", "cProfile", "-o", str(profile)] if profile else []
        options = ["--upstream", self.upstream.url, "--profile", "vllm", "--logs", str(logs), "--port", "0"]
        command = [sys.executable, *under, *COMMAND, "proxy", *options, "--json"]
        # A profile is written on KeyboardInterrupt, not on a signal that ends the process.
        return Server(command, SYSTEM_CORE, signal.SIGINT if profile else signal.SIGTERM)

    def load(self, cell: Cell, server: Server, tag: str) -> Result:
        """One cell against one server, by agents in a process of their own."""
        command = module(
            "benchmarks.client",
            *("--cell", json.dumps(asdict(cell)), "--url", server.url, "--tag", tag),
            *("--text", str(self.text)),
            *("--system-pid", str(server.pid), "--upstream-pid", str(self.upstream.pid)),
        )
        print(f"  {cell.name}: {tag}", file=sys.stderr, flush=True)
        with ahead_of_others(server.pid, self.upstream.pid) if cell.timed else nullcontext():
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, preexec_fn=lambda: begin(cell.timed)
            )
        if done.returncode:
            said = done.stderr.decode()[-2000:]
            raise RuntimeError(f"the agents failed:\n{said}\n{server.state()}\n{self.upstream.state()}")
        result = Result(**json.loads(done.stdout))
        self.failures += [f"{cell.name}, {tag}: {failure}" for failure in result.failures[:3]]
        return result

    def compare(self, cells: Sequence[Cell]) -> None:
        """Every cell in every round, the systems by turns."""
        logs = self.scratch / "logs"
        results: dict[tuple[str, str], list[Result]] = {}
        with self.passthrough() as bare, self.gyre(logs) if self.recording else nullcontext() as ours:
            servers = {DIRECT: self.upstream, PASS: bare, GYRE: ours}
            for place, cell, turn in self.turns(cells):
                for system, server in servers.items():
                    if server is None or not measured(cell, system):
                        continue
                    result = self.load(cell, server, f"{system}-{place}-{turn}")
                    results.setdefault((cell.name, system), []).append(result)
                    self.answered += result.answered if system == GYRE else 0
        self.rows = [report.figures(*key, rounds) for key, rounds in results.items() if rounds[0].calls]
        if ours:
            self.remarks.append(
                f"stopping, with the sealing of what was open, took {ours.stop_cpu_s:.1f} s CPU, "
                f"{ours.stop_cpu_s / max(1, self.answered) * 1e6:.0f} us per call of all cells"
            )
            self.count_rows(logs)

    def turns(self, cells: Sequence[Cell]) -> Iterator[tuple[int, Cell, int]]:
        """(place of the cell, cell, number of the turn in all rounds)"""
        for number in range(self.rounds):
            for place, cell in enumerate(cells):
                for turn in range(cell.turns if number < cell.rounds else 0):
                    yield place, cell, number * cell.turns + turn

    def count_rows(self, logs: Path) -> None:
        seal(logs)
        share = exact_rows(logs) / max(1, self.answered)
        self.bars.append(Bar(name="calls recorded / answered", value=share, limit=1, unit="", exact=True))

    def memory(self, cell: Cell) -> None:
        """Peak memory of a new proxy against the bytes that are in flight."""
        with self.passthrough() as bare:
            passed = self.load(cell, bare, "pass-through-memory")
        in_flight = cell.open * (passed.request_bytes + passed.answer_bytes) / passed.calls
        with self.gyre(self.scratch / "memory") as server, peak_memory(server.pid) as peak:
            self.load(cell, server, "gyre-memory")
        name = f"peak memory, {cell.name} ({in_flight / MB:.0f} MB in flight)"
        limit = round(1.2 * in_flight / MB + 200)
        self.bars.append(Bar(name=name, value=peak.bytes / MB, limit=limit, unit="MB"))

    def log_size(self, cell: Cell) -> None:
        """The sealed log of one long execution against what was new in it."""
        logs = self.scratch / "long"
        with self.gyre(logs) as server:
            result = self.load(cell, server, "gyre-long")
        seal(logs)
        size = sum(path.stat().st_size for path in logs.rglob("*") if path.is_file())
        new = result.unique_bytes + 4 * result.new_ids + 4 * cell.output * result.calls
        name = f"sealed log, {cell.name} ({new / MB:.1f} MB new)"
        self.bars.append(Bar(name=name, value=size / new, limit=1.5, unit="x new bytes"))
        milliseconds = result.cpu_s / result.calls * 1e3
        self.remarks.append(f"{cell.name}: log {size / MB:.1f} MB, {milliseconds:.1f} ms CPU per call")
        if exact_rows(logs) != result.answered:
            self.failures.append(f"{cell.name}: {exact_rows(logs)} rows for {result.answered} answers")


def begin(timed: bool) -> None:
    """What the process of the agents does first."""
    pin(LOAD_CORE)
    if timed:
        set_real_time(0)


def measured(cell: Cell, system: str) -> bool:
    """Whether the cell is for that system too."""
    return {DIRECT: cell.direct, PASS: cell.bare, GYRE: True}[system]


def seal(logs: Path) -> None:
    command = [sys.executable, *COMMAND, "log", "seal", str(logs)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def exact_rows(logs: Path) -> int:
    """Rows of calls that ended well and have every id and log-probability."""
    query = "SELECT count(*) FROM read_parquet(?) WHERE outcome = 'ok' AND capture_quality = 'exact'"
    row = duckdb.connect().execute(query, [str(logs / "calls" / "*.parquet")]).fetchone()
    return int(row[0]) if row else 0


def profile(bench: Bench, name: str) -> None:
    """Where gyre's time goes in one cell, by cProfile."""
    cell = next(cell for cell in (*CELLS, *WIRE_CELLS) if cell.name == name)
    out = bench.scratch / "gyre.prof"
    with bench.gyre(bench.scratch / "profiled", profile=out) as server:
        bench.load(cell, server, "gyre-profile")
    pstats.Stats(str(out)).sort_stats("tottime").print_stats(45)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument("--quick", action="store_true", help="one round of few calls, under a minute")
    options.add_argument("--rounds", type=int, help="default 3, with --quick 1")
    options.add_argument(
        "--only", default="", help="only cells, or parts of --engine or --train, whose name contains this"
    )
    options.add_argument("--wires", action="store_true", help="only what Messages and Responses cost")
    options.add_argument("--trees", action="store_true", help="only what trees cost, no proxies")
    options.add_argument("--engine", action="store_true", help="only the embedded engine, no proxies")
    options.add_argument("--train", action="store_true", help="only training on trees, no proxies")
    options.add_argument("--live", action="store_true", help="only where the time of a live run goes")
    options.add_argument("--bare", action="store_true", help="the pass-through alone, without gyre")
    options.add_argument("--json", action="store_true", help="one JSON document instead of the tables")
    options.add_argument("--markdown", action="store_true", help="tables for docs/measurements.md")
    options.add_argument(
        "--profile",
        nargs="?",
        const="2 KB x 32",
        choices=[cell.name for cell in (*CELLS, *WIRE_CELLS)],
        metavar="CELL",
        help="profile gyre in one cell (default `2 KB x 32`) and stop",
    )
    return options.parse_args(arguments)


def run(bench: Bench, chosen: argparse.Namespace) -> None:
    shrink = quick if chosen.quick else lambda cell: cell
    wanted = WIRE_CELLS if chosen.wires else (*CELLS, *WIRE_CELLS)
    if cells := [shrink(cell) for cell in wanted if chosen.only in cell.name]:
        bench.compare(cells)
    if bench.recording and not chosen.wires and chosen.only in MEMORY.name:
        bench.memory(shrink(MEMORY))
    if bench.recording and not chosen.wires and chosen.only in LOG.name:
        bench.log_size(quick_log() if chosen.quick else LOG)
    table = report.Table(bench.rows)
    bench.bars = report.load_bars(table) + wires_report.bars(table) + bench.bars
    bench.remarks = report.notes(table) + bench.remarks
    if not may_be_ahead():
        bench.remarks.append("transits hold the time slices of other work: real-time priority is not allowed")
    bench.remarks += [f"FAILED {failure}" for failure in bench.failures]


def recording(chosen: argparse.Namespace, scratch: Path, rounds: int) -> Bench:
    """What recording costs, or a profile of it."""
    text = scratch / "text"
    text.write_bytes(make_text())
    with Server(module("benchmarks.upstream"), LOAD_CORE) as upstream:
        bench = Bench(upstream, scratch, text, rounds, recording=not chosen.bare)
        if chosen.profile:
            profile(bench, chosen.profile)
        else:
            run(bench, chosen)
    return bench


def document(
    found: Sequence[Bench],
    trees: Results,
    engine: EngineResults,
    train: TrainResults,
    live: LiveResults,
    bars: Sequence[Bar],
    remarks: Sequence[str],
) -> str:
    rows = [asdict(row) for bench in found for row in bench.rows]
    listed = [asdict(bar) | {"met": bar.met} for bar in bars]
    head = {"schema": 1, "machine": report.machine(), "remarks": remarks}
    parts = {"trees": trees, "engine": engine, "train": train, "live": live}
    told = {name: asdict(part) for name, part in parts.items()}
    return json.dumps(head | {"figures": rows, "bars": listed} | told)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: every call was answered and every bar was met."""
    chosen = read_options(arguments)
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    trees, engine, train, live = Results(), EngineResults(), TrainResults(), LiveResults()
    apart = chosen.trees or chosen.engine or chosen.train or chosen.live
    everything = not (chosen.bare or chosen.wires or apart or chosen.only)
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as scratch:
        found = [] if apart else [recording(chosen, Path(scratch), rounds)]
        if chosen.profile:
            return 0
        if chosen.trees or everything:
            trees = measure_trees(Path(scratch), rounds)
        if chosen.engine or everything:
            engine = measure_engine(rounds, short=chosen.quick, only=chosen.only)
        if chosen.train or everything:
            train = measure_train(rounds, short=chosen.quick, only=chosen.only)
        if chosen.live or everything:
            live = measure_live(Path(scratch), short=chosen.quick)
    parts = (trees, engine, train, live)
    bars = [bar for bench in found for bar in bench.bars] + [bar for part in parts for bar in part.bars()]
    remarks = [remark for bench in found for remark in bench.remarks]
    if chosen.json:
        print(document(found, trees, engine, train, live, bars, remarks))
    else:
        show = report.markdown if chosen.markdown else report.show
        rows = [row for bench in found for row in bench.rows]
        wired = {cell.name for cell in WIRE_CELLS}
        grids = wires_report.grids(report.Table(rows)) + [grid for part in parts for grid in part.grids()]
        print(show([row for row in rows if row.cell not in wired], bars, remarks, grids))
    failed = any(bench.failures for bench in found)
    return int(failed or not all(bar.met for bar in bars))
