"""What of a live run is shown, in words: rows for a table, lines for a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gyre.cli.output import counted

if TYPE_CHECKING:
    from gyre.trainer.live.reports import BatchReport, Evaluated, Publication
    from gyre.trainer.live.status import Point, Status

Row = tuple[str, str]
_BARS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"
_SILENT_S = 30.0
_WIDTH = 24
"""Of the bar of batches."""


def rows(status: Status, now: float, *, gone: bool = False) -> list[Row]:
    """`gone`: its process has ended without a word. What is not known yet is left out."""
    found = [("run", status.run), ("state", _state(status, now, gone)), ("batch", _batch(status))]
    found += _learning(status)
    found += _executions(status)
    found += _last_batch(status)
    found += _time(status)
    if status.restarts:
        found.append(("restarted", ", ".join(f"{kind} {times}x" for kind, times in status.restarts.items())))
    found += [("warning", warning) for warning in status.warnings]
    found += [("error", status.error)] if status.error else []
    found += [("hint", status.hint)] if status.hint else []
    return found


def _state(status: Status, now: float, gone: bool) -> str:
    if gone:
        return f"gone: process {status.pid} ended while {status.phase}; `--resume` goes on"
    if status.phase.over:
        return f"{status.phase} after {duration(status.updated_at - status.started_at)}"
    spent, in_all = duration(now - status.phase_at), duration(now - status.started_at)
    silent = now - status.updated_at
    said = f" · said nothing for {duration(silent)}" if silent > _SILENT_S else ""
    return f"{status.phase} for {spent} · running for {in_all}{said}"


def _batch(status: Status) -> str:
    full = round(_WIDTH * status.batches_done / status.batches) if status.batches else 0
    bar = "━" * full + "─" * (_WIDTH - full)
    text = f"{bar} {status.batches_done:,} of {status.batches:,} · {counted(status.updates, 'update')}"
    return text + (f" · version {status.version}" if status.version else "")


def _learning(status: Status) -> Iterator[Row]:
    rates = [point.pass_rate for point in status.history]
    if any(rate is not None for rate in rates):
        last = status.history[-1]
        varied = status.groups_varied
        learned = "" if varied is None else f" · {counted(varied, 'group')} with variance"
        yield "pass rate", f"{sparkline(rates)} {_passed(last)}{learned}"
    temperatures = dict.fromkeys(one.temperature for one in status.evaluations)
    for temperature in temperatures:
        alike = [one for one in status.evaluations if one.temperature == temperature]
        yield "evaluation" if temperature else "greedy evaluation", _evaluations(alike)


def _evaluations(alike: list[Evaluated]) -> str:
    """`25% (version 0) → 81% (version 7) · best 83% (version 6)`"""
    first, last = alike[0], alike[-1]
    best = max(alike, key=lambda one: one.pass_rate or 0.0)
    text = _rated(last) if first is last else f"{_rated(first)} → {_rated(last)}"
    return text + (f" · best {_rated(best)}" if (best.pass_rate or 0.0) > (last.pass_rate or 0.0) else "")


def _rated(evaluated: Evaluated) -> str:
    return f"{share(evaluated.pass_rate)} (version {evaluated.version})"


def _executions(status: Status) -> Iterator[Row]:
    counts = status.executions
    text = f"{counts.running:,} running · {counts.waiting:,} waiting · {counts.done:,} done"
    yield "executions", text + f" · {counts.timed_out:,} timed out"
    yield "groups", f"{status.groups_waiting:,} under way · {status.groups_ready:,} ready"
    if status.tokens_per_s is not None:
        yield "sampled", f"{status.tokens_per_s:,.0f} tokens/s"


def _last_batch(status: Status) -> Iterator[Row]:
    stale = status.staleness
    if stale:
        text = f"{stale.mean:.2g} publications, at most {stale.max} · "
        yield "staleness", text + f"{stale.updates_mean:.2g} updates, at most {stale.updates_max}"
    kept, saved = status.kept_share, status.tree_savings
    parts = [] if kept is None else [f"{share(kept)} of targets kept"]
    parts += [] if saved is None else [f"{share(saved)} of tokens saved"]
    if parts:
        yield "trees", " · ".join(parts)


def _time(status: Status) -> Iterator[Row]:
    if status.seconds:
        yield "time, last batch", times(status.seconds)
    if status.batches_done > 1:
        yield "time, all batches", times(status.seconds_in_all)


def batch_line(report: BatchReport, batches: int) -> str:
    timed_out = sum(group.outcomes.get("timed_out", 0) for group in report.groups)
    left_out = sum(sum(group.left_out.values()) for group in report.groups)
    parts = [f"batch {report.batch + 1}/{batches}"]
    if report.scores:
        parts.append(f"pass rate {_passed(report)}")
    parts.append(f"{counted(report.executions, 'execution')}")
    parts += [f"{timed_out} timed out"] if timed_out else []
    parts += [f"{left_out} left out"] if left_out else []
    parts.append(f"variance in {report.varied} of {counted(len(report.groups), 'group')}")
    parts += [] if report.kept_share is None else [f"{share(report.kept_share)} of targets kept"]
    parts += [] if report.tree_savings is None else [f"{share(report.tree_savings)} of tokens saved"]
    return " · ".join([*parts, times(report.seconds)])


def publication_line(publication: Publication) -> str:
    held = f" · {counted(publication.held, 'open request')}" if publication.held else ""
    after = counted(publication.update, "update")
    return f"version {publication.version} published after {after} · {publication.seconds:.1f} s{held}"


def evaluation_line(evaluated: Evaluated) -> str:
    how = f"temperature {evaluated.temperature:g}" if evaluated.temperature else "greedy"
    text = f"evaluation of version {evaluated.version}, {how} · pass rate {_passed(evaluated)}"
    return f"{text} · {counted(evaluated.episodes, 'episode')} · {duration(evaluated.seconds)}"


def status_line(status: Status, *, gone: bool = False) -> str:
    """Where the run stands, in short."""
    state = "gone" if gone else str(status.phase)
    parts = [f"batch {status.batches_done}/{status.batches}", state]
    if status.history:
        parts.append(f"pass rate {_passed(status.history[-1])}")
    counts = status.executions
    return " · ".join([*parts, f"{counts.running} running", f"{counts.waiting} waiting"])


def sparkline(values: Iterable[float | None]) -> str:
    """Of values from 0 to 1."""
    return "".join(_NOTHING if value is None else _BARS[_step(value)] for value in values)


def _step(value: float) -> int:
    return min(max(int(value * len(_BARS)), 0), len(_BARS) - 1)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _passed(of: BatchReport | Evaluated | Point) -> str:
    """With the mean score where that says more."""
    score = of.mean_score
    return share(of.pass_rate) + ("" if score in (None, of.pass_rate) else f", mean score {score:.3g}")


def times(seconds: Mapping[str, float]) -> str:
    """`12 s: wait 60%, train 40%`; what took no time worth a word is left out."""
    total = sum(seconds.values())
    shares = [
        f"{phase} {spent / total:.0%}" for phase, spent in seconds.items() if total and spent >= total / 200
    ]
    return duration(total) + (f": {', '.join(shares)}" if shares else "")


def duration(seconds: float) -> str:
    """`1.2 s`, `12 s`, `3m 05s`, `2h 03m`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest:02}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02}m"
