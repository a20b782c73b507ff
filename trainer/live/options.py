"""How the executions of a live run are run: what `gyre run` takes from its command line."""

from __future__ import annotations

import os
from pathlib import Path

from gyre.proxy.allowance import Allowance
from gyre.proxy.units import bytes_of, seconds_of
from gyre.trainer.errors import TrainError
from gyre.trainer.live.jobs import pinned
from gyre.trainer.live.settings import HarnessTable, LimitTable, RunSettings
from gyre.trainer.rollout.job import Options


def options_of(
    settings: RunSettings, runs: Path, *, model: str, context: int | None, confined: bool
) -> Options:
    """Of those that are trained. `model` and `context` are the engine's.

    Raises:
        TrainError: a variable that is to be kept is not set.
    """
    harness, limits, timeouts = settings.harness, settings.limits, settings.timeouts
    return Options(
        runs=runs,
        harness=harness.preset,
        program=harness.program,
        command=harness.command,
        model=model,
        context=min(filter(None, (limits.context, context)), default=None),
        timeout_s=seconds_of(limits.time) if limits.time else None,
        score=settings.score,
        score_timeout_s=seconds_of(timeouts.scorer) if timeouts.scorer else None,
        # What is set wins over what is kept.
        env=_kept(harness) | harness.env,
        scorer_env=_kept(harness),
        workspace_limit=bytes_of(limits.workspace),
        pin=pinned(settings.sampling.temperature),
        allowance=_allowance(limits),
        memory=bytes_of(limits.memory) if limits.memory else None,
        processes=limits.processes,
        confined=confined,
        hidden=_hidden(settings),
    )


def _allowance(limits: LimitTable) -> Allowance | None:
    if limits.calls is None and limits.tokens is None:
        return None
    return Allowance(calls=limits.calls, tokens=limits.tokens)


def _hidden(settings: RunSettings) -> list[Path]:
    """All of the run, and how tasks are scored, those that are to come included."""
    lists = (*settings.tasks, *settings.evaluation.tasks)
    return [*([Path(settings.out)] if settings.out else []), *(Path(each.folder) for each in lists)]


def _kept(harness: HarnessTable) -> dict[str, str]:
    for name in harness.keep_env:
        if name not in os.environ:
            raise TrainError(
                f"`harness.keep_env` names `{name}`, which is not set", f"set it, as in `export {name}=...`"
            )
    return {name: os.environ[name] for name in harness.keep_env}
