"""`gyre train RUN.toml`: agents run, are scored and learned from, until the run file's batches are done."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.cli import output
from gyre.cli.several import failed
from gyre.cli.stop import interruptible
from gyre.cli.train_view import view
from gyre.proxy.errors import GyreError

if TYPE_CHECKING:
    from gyre.trainer.live.reports import Evaluated
    from gyre.trainer.live.settings import RunSettings
    from gyre.trainer.live.watch import LiveOutcome
    from gyre.trainer.update.ranks import Ranks

SCHEMA = 1
_COLUMNS = ("", "")
_MAIN_FIRST_S = 30.0
"""The main process has agents and engines to end before it comes to its own end."""


def train_live(run_file: Path, flags: Mapping[str, Any], *, resume: bool, dry_run: bool, json: bool) -> int:
    """Its exit code."""
    from gyre.elastic.packaged import require_packages
    from gyre.trainer.live.config import load_run, require_files

    settings = load_run(run_file, flags)
    require_files(settings)
    require_packages("train", "torch", "transformers", "safetensors", "tensorboard")
    if dry_run:
        from gyre.cli.train_plan import print_plan

        print_plan(settings, json=json)
        return 0
    from gyre.trainer.update.processes import start

    ranks = start(settings.train.device)
    code = _lead(settings, ranks, resume, json) if ranks.is_main else _follow(settings, ranks, resume)
    ranks.leave(code)
    return code


def _lead(settings: RunSettings, ranks: Ranks, resume: bool, json: bool) -> int:
    """The run; exit code."""
    from gyre.proxy.process import allow_open_files
    from gyre.trainer.live.watch import LiveWatch
    from gyre.trainer.loop import run

    began = time.monotonic()
    allow_open_files()  # each execution takes some
    try:
        with interruptible("ending what runs; again: at once") as stop, view() as shown:
            watch = LiveWatch(
                tell=shown.tell,
                status=shown.status,
                batch=shown.batch,
                publication=shown.publication,
                evaluation=shown.evaluation,
                stop=stop.is_set,
            )
            outcome = run(settings, out_of(settings), resume=resume, ranks=ranks, watch=watch)
    except GyreError as error:
        failed(ranks, error)
        raise
    if json:
        output.print_json(_document(outcome, settings))
    else:
        _print(outcome, settings, time.monotonic() - began)
    return stop.code if outcome.interrupted else 0


def _follow(settings: RunSettings, ranks: Ranks, resume: bool) -> int:
    """In the other processes of several, which say nothing but what they fail of."""
    from gyre.trainer.live.follow import follow

    try:
        with interruptible("") as stop:
            in_order = follow(settings, out_of(settings), ranks=ranks, resume=resume, stop=stop.is_set)
    except GyreError as error:
        failed(ranks, error, main_first_s=0.0 if stop.is_set() else _MAIN_FIRST_S)
        raise
    if not in_order:
        with suppress(GyreError):  # the main process has yet to say what it failed of
            ranks.barrier()
        ranks.leave(1)
    return stop.code


def out_of(settings: RunSettings) -> Path:
    """`load_run` has filled it in."""
    assert settings.out is not None
    return Path(settings.out)


def _model(outcome: LiveOutcome) -> Path | None:
    """What may be served: the final model, or of a run that has not ended its newest."""
    newest = outcome.checkpoint / "model" if outcome.checkpoint else None
    return outcome.final or newest


def _document(outcome: LiveOutcome, settings: RunSettings) -> dict[str, Any]:
    import msgspec

    out = out_of(settings)
    return {
        "schema": SCHEMA,
        "run": out,
        "batches": outcome.batches,
        "total_batches": settings.rollout.batches,
        "updates": outcome.updates,
        "interrupted": outcome.interrupted,
        "checkpoint": outcome.checkpoint,
        "model": _model(outcome),
        "metrics": out / "metrics.jsonl",
        "evaluations": [msgspec.to_builtins(each) for each in outcome.evaluations],
    }


def _print(outcome: LiveOutcome, settings: RunSettings, seconds: float) -> None:
    out, model = out_of(settings), _model(outcome)
    rows: list[tuple[str, object]] = [
        ("batches", f"{outcome.batches:,} of {settings.rollout.batches:,}"),
        ("updates", outcome.updates),
        ("seconds", f"{seconds:,.1f}"),
        *_evaluations(outcome.evaluations),
        ("model", model or "none yet"),
        ("metrics", out / "metrics.jsonl"),
    ]
    output.print_table("interrupted" if outcome.interrupted else "trained", _COLUMNS, rows)
    if outcome.interrupted:
        output.say("go on: the same command with --resume")
    elif model:
        output.say(f"serve it: gyre engine --model {shlex.quote(str(model))}")
        output.say(f"watch it: tensorboard --logdir {shlex.quote(str(out / 'tensorboard'))}")


def _evaluations(evaluations: list[Evaluated]) -> list[tuple[str, object]]:
    """The first and the last of each temperature, with the mean scores where they say more."""
    rows: list[tuple[str, object]] = []
    for temperature in dict.fromkeys(each.temperature for each in evaluations):
        alike = [each for each in evaluations if each.temperature == temperature]
        ends = (alike[0], alike[-1])[: len(alike)]
        rows.append((f"evaluated at temperature {temperature:g}", " -> ".join(map(_rate, ends))))
        if any(each.mean_score != each.pass_rate for each in ends):
            rows.append(("mean score", " -> ".join(map(_score, ends))))
    return rows


def _rate(evaluated: Evaluated) -> str:
    if evaluated.pass_rate is None:
        return f"nothing scored (version {evaluated.version})"
    return f"{evaluated.pass_rate:.0%} of {evaluated.episodes:,} (version {evaluated.version})"


def _score(evaluated: Evaluated) -> str:
    return "-" if evaluated.mean_score is None else f"{evaluated.mean_score:.3g}"
