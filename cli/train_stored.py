"""`gyre train --trees`: a folder of trees makes a model better."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.cli import output
from gyre.cli.several import failed
from gyre.cli.stop import Stop, interruptible
from gyre.proxy.errors import GyreError

if TYPE_CHECKING:
    from gyre.trainer.settings import TrainSettings
    from gyre.trainer.train import Outcome
    from gyre.trainer.update.ranks import Ranks
    from gyre.trainer.update.report import UpdateReport

SCHEMA = 1
_COLUMNS = ("", "")
_MAIN_FIRST_S = 5.0
"""torchrun ends all processes when one has ended with an error, sooner than that."""


def train_stored(
    trees: Path,
    model: str,
    out: Path,
    config: Path | None,
    *,
    max_updates: int | None,
    resume: bool,
    dry_run: bool,
    json: bool,
) -> int:
    """Its exit code."""
    from gyre.elastic.packaged import require_packages
    from gyre.trainer.config import load_config

    settings = load_config(config, {"max_updates": max_updates})
    require_packages("train", "torch", "transformers", "safetensors", "tensorboard")
    if dry_run:
        _dry(trees, model, settings, json)
        return 0
    from gyre.trainer.update.processes import start

    ranks, began = start(settings.device), time.monotonic()
    if not ranks.is_main:
        output.manner.quiet = True
    try:
        with interruptible("stopping after the piece under way; again: at once") as stop:
            outcome = _train(trees, model, out, settings, resume, ranks, stop)
    except GyreError as error:
        failed(ranks, error, main_first_s=_MAIN_FIRST_S)
        raise
    if ranks.is_main:
        _print_json(outcome, out) if json else _print_outcome(outcome, out, time.monotonic() - began)
    code = stop.code if outcome.interrupted else 0
    ranks.leave(code)
    return code


def _train(
    trees: Path, model: str, out: Path, settings: TrainSettings, resume: bool, ranks: Ranks, stop: Stop
) -> Outcome:
    from gyre.trainer.train import Watch
    from gyre.trainer.train import train as run

    with _shown() as updated:
        watch = Watch(tell=output.say, updated=updated, stop=stop.is_set)
        return run(trees, model, out, settings, resume=resume, ranks=ranks, watch=watch)


@contextmanager
def _shown() -> Iterator[Callable[[UpdateReport, int], None]]:
    """A bar for who watches, a line per update for a log."""
    with output.counting("training") as count:

        def updated(report: UpdateReport, total: int) -> None:
            count(report.update, total)
            if not output.shows_progress():
                output.say(_line(report, total))

        yield updated


def _line(report: UpdateReport, total: int) -> str:
    """What one looks at first. Ratios are shown where they are not 1, as in the first update of a batch."""
    numbers = report.metrics()
    parts = [f"update {report.update}/{total}"]
    if report.rewards:
        parts.append(f"reward {report.rewards.mean:.3g}")
    if report.skipped != "no":
        parts.append(f"skipped: {report.skipped}")
    else:
        parts.append(f"loss {report.loss:+.4f} · gradient {report.grad_norm:.3g}")
    if report.objective and numbers["ratio/min"] != numbers["ratio/max"]:
        ratio, clipped = report.objective.execution_ratio, report.objective.clipped
        share = clipped.targets_high + clipped.targets_low
        parts.append(f"ratio {ratio.min:.4f} to {ratio.max:.4f} · clipped {share:.0%}")
    if report.targets:
        parts.append(f"{numbers['tokens/per_s']:,.0f} tokens/s")
    return " · ".join(parts)


def _print_json(outcome: Outcome, out: Path) -> None:
    output.print_json(
        {
            "schema": SCHEMA,
            "updates": outcome.updates,
            "total_updates": outcome.total,
            "interrupted": outcome.interrupted,
            "bad_updates": outcome.bad,
            "checkpoint": outcome.checkpoint,
            "model": outcome.checkpoint / "model" if outcome.checkpoint else None,
            "metrics": out / "metrics.jsonl",
            "last": outcome.last.metrics() if outcome.last else None,
        }
    )


def _print_outcome(outcome: Outcome, out: Path, seconds: float) -> None:
    """The model by the name that stays when a longer run removes this checkpoint."""
    model = out / "latest" / "model" if outcome.checkpoint else None
    idle = outcome.last is None and not outcome.interrupted
    rows: list[tuple[str, object]] = [
        ("updates", f"{outcome.updates:,}" if idle else f"{outcome.updates:,} of {outcome.total:,}"),
        ("seconds", f"{seconds:,.1f}"),
    ]
    if outcome.bad:
        rows.append(("skipped: not finite", outcome.bad))
    if outcome.last:
        rows.append(("last loss", f"{outcome.last.loss:+.4f}"))
    rows += [("model", model or "none: stopped before the first update"), ("metrics", out / "metrics.jsonl")]
    title = "interrupted" if outcome.interrupted else "nothing left to do" if idle else "trained"
    output.print_table(title, _COLUMNS, rows)
    if outcome.interrupted:
        output.say("go on: the same command with --resume")
    elif model:
        output.say(f"serve it: gyre engine --model {shlex.quote(str(model))}")
        output.say(f"watch it: tensorboard --logdir {shlex.quote(str(out / 'tensorboard'))}")


def _dry(trees: Path, model: str, settings: TrainSettings, json: bool) -> None:
    from gyre.trainer.plan import make_plan

    plan = make_plan(trees, model, settings)
    if json:
        output.print_json({"schema": SCHEMA, **plan.as_json()})
        return
    print(plan.toml)
    for title, rows in plan.tables().items():
        output.print_table(title, _COLUMNS, rows)
        print()
